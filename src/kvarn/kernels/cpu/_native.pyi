"""Compiled CPU kernels (csrc/bindings). Tensors are passed as addresses; use kvarn.kernels.cpu, which checks them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

def usable_instruction_sets() -> list[str]: ...
def emulated_instruction_sets() -> list[str]: ...

class Backend:
    def __init__(self, isa: str) -> None: ...
    def rms_norm(
        self,
        x: int,
        rows: int,
        size: int,
        x_stride: int,
        weight: int,
        eps: float,
        out: int,
        out_stride: int,
        accumulate: bool,
    ) -> None: ...
    def activate(self, x: int, count: int, activation: int, out: int) -> None: ...
    def pack_quantized(
        self, weight: PackedWeight, parts: Sequence[tuple[int, int]], is_bf16: bool, blob: int
    ) -> None: ...
    def linear(
        self,
        weight: PackedWeight,
        x: int,
        rows: int,
        x_stride: int,
        norm: int,
        eps: float,
        activation: int,
        bias: int,
        out: int,
        out_stride: int,
        accumulate: bool,
        adapters: AdapterBatch | None = None,
        layer: int = -1,
    ) -> None: ...
    def attention(
        self,
        metadata: AttentionMetadata,
        qkv: int,
        qkv_stride: int,
        query_heads: int,
        kv_heads: int,
        dim: int,
        kv_type: int,
        cos: int,
        sin: int,
        half_rotated: int,
        norm: int,
        eps: float,
        keys: int,
        values: int,
        scale: float,
        softcap: float,
        out: int,
        out_stride: int,
        sinks: int = 0,
    ) -> None: ...
    def latent_attention(
        self,
        metadata: AttentionMetadata,
        heads: int,
        size: int,
        value_size: int,
        queries: int,
        cache: int,
        rounded: bool,
        scale: float,
        out: int,
    ) -> None: ...
    def delta_rule(
        self,
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        window: int,
        sequences: int,
        tokens: int,
        query_starts: int,
        places: int,
        saves: int,
        num_saves: int,
        projected: int,
        rates: int,
        convolution: int,
        decay: int,
        decay_bias: int,
        norm: int,
        eps: float,
        matrices: int,
        inputs: int,
        out: int,
    ) -> None: ...
    def most_likely(self, logits: int, rows: int, vocab: int, stride: int, tokens: int, values: int) -> None: ...
    def draw_tokens(
        self,
        logits: int,
        vocab: int,
        stride: int,
        bits: int,
        rows: int,
        count: int,
        row_max: int,
        temperature: int,
        top_k: int,
        top_p: int,
        min_p: int,
        uniforms: int,
        tokens: int,
    ) -> None: ...
    def mask_logits(self, logits: int, vocab: int, stride: int, rows: list[int], masks: list[int]) -> None: ...
    def run_layers(
        self,
        layers: DecoderLayers,
        first: int,
        last: int,
        plans: list[AttentionMetadata],
        cos: list[int],
        sin: list[int],
        half_rotated: list[int],
        keys: list[int],
        values: list[int],
        adapters: AdapterBatch | None,
        hidden: int,
    ) -> None: ...
    def greedy(
        self,
        decoder: GreedyDecoder,
        metadata: AttentionMetadata,
        token_ids: int,
        active: int,
        passes: int,
        vocab: int,
        cos: list[int],
        sin: list[int],
        half_rotated: list[int],
        drawn: int,
    ) -> None: ...
    def token_weights(
        self, logits: int, vocab: int, bits: int, row_max: float, temperature: float, min_p: float, out: int
    ) -> None: ...
    def read_all(self, memory: int, size: int) -> tuple[float, int]: ...
    def multiply_floats(self, pieces: int, rounds: int) -> tuple[float, int]: ...
    def multiply_bytes(self, pieces: int, rounds: int) -> tuple[float, int]: ...

class PackedWeight:
    blob: int
    def __init__(
        self, layout: int, out: int, in_: int, group: int, has_zeros: bool, gated: bool, has_sub_scales: bool = False
    ) -> None: ...
    @property
    def size(self) -> int: ...

def pack_float(weight: PackedWeight, parts: Sequence[tuple[int, int]], blob: int) -> None: ...
def pack_int8(weight: PackedWeight, values: int, scales: int, blob: int) -> None: ...
def pack_int4(weight: PackedWeight, values: int, scales: int, zeros: int, blob: int, sub_scales: int = 0) -> None: ...
def unpack_rows(weight: PackedWeight, ids: int, count: int, out: int) -> None: ...
def longest_match(text: npt.NDArray[np.int32], tail: npt.NDArray[np.int32]) -> tuple[int, int]:
    """See `kvarn.kernels.search`."""

class TileCounter:
    """Counts what emulated tiles do while it is entered. One counts at a time, and one thread works meanwhile.
    Lines are of 64 bytes."""

    def __init__(self) -> None: ...
    def __enter__(self) -> TileCounter: ...
    def __exit__(self, *error: object) -> None: ...
    @property
    def products(self) -> list[int]:
        """[17]: tile products by the number of rows of their sums."""
    @property
    def loaded(self) -> list[int]:
        """[4]: lines loaded to tiles that a first cache (48 KiB) held, a second (2 MiB), a third (64 MiB), or none."""
    @property
    def stored(self) -> list[int]:
        """[4]: lines stored from tiles, likewise."""
    @property
    def configurations(self) -> int: ...

class NormWeight:
    def __init__(self, weight: int = 0, eps: float = 0.0) -> None: ...

class Product:
    def __init__(
        self, weight: PackedWeight, norm: NormWeight, activation: int, bias: int, adapter_layer: int
    ) -> None: ...

class DecoderLayers:
    def __init__(
        self, query_heads: int, kv_heads: int, dim: int, kv_type: int, scale: float, softcap: float
    ) -> None: ...
    def add(
        self,
        qkv: Product,
        output: Product,
        up: Product,
        down: Product,
        heads: NormWeight,
        attention_output: NormWeight,
        mlp_output: NormWeight,
        kind: int,
    ) -> None: ...

class GreedyDecoder:
    def __init__(
        self,
        layers: DecoderLayers,
        keys: list[int],
        values: list[int],
        embedding: PackedWeight,
        head: Product,
        windows: list[int],
    ) -> None: ...

class AttentionMetadata:
    def __init__(
        self,
        query_starts: int,
        context_lens: int,
        block_tables: int,
        table_stride: int,
        table_blocks: int,
        slots: int,
        sequences: int,
        tokens: int,
        window: int,
        causal: bool,
        query_heads: int,
        kv_heads: int,
    ) -> None: ...
    @property
    def num_items(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...

class AdapterTable:
    def __init__(self, lines_per_page: int, wide: bool) -> None: ...
    def set(self, index: int, pages: list[int], layers: list[list[tuple[int, int, int, int, int, float]]]) -> None: ...

class AdapterBatch:
    def __init__(self, table: AdapterTable, rows: list[int], groups: list[tuple[int, int]]) -> None: ...
