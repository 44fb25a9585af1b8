"""What every backend of kernels offers, and what each operation means: the reference, in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from kvarn.kernels.activation import Activation, activate
from kvarn.kernels.adapters import AdapterMemory
from kvarn.kernels.batch import HeadShape, KVCache, PagedBatch, Rotation, StateCache
from kvarn.kernels.decoder import DecoderLayers, DecoderParts, GreedyDecoder, GreedyParts
from kvarn.kernels.delta import DeltaPlan
from kvarn.kernels.device.memory import DeviceMemory, usable_memory, zeros_on_demand
from kvarn.kernels.errors import UnsupportedByBackendError
from kvarn.kernels.experts import GroupedExperts
from kvarn.kernels.linear import LayerNorm, Linear, Norm
from kvarn.kernels.router import RouterSpec
from kvarn.kernels.sampling import SamplingTensors, unpack_mask
from kvarn.kernels.torch.adapters import TorchAdapterMemory
from kvarn.kernels.torch.attention import plan_attention
from kvarn.kernels.torch.bidirectional import TorchBidirectionalPlan
from kvarn.kernels.torch.delta import TorchDeltaPlan
from kvarn.kernels.torch.latent import TorchLatentPlan
from kvarn.kernels.torch.linear import TorchHeadProducts, TorchLinear, rms_norm
from kvarn.kernels.torch.quantize import quantize
from kvarn.kernels.torch.router import route
from kvarn.kernels.torch.sampling import draw_tokens, most_likely
from kvarn.kernels.weights import Quantization, Weight, concatenate
from kvarn.shapes import BLOCK_SIZE, KvDtype
from kvarn.shapes.attention import DeltaDimensions


class AttentionPlan(Protocol):
    """Which blocks the queries of one step read: worked out once, run by each layer with the same window."""

    def run(
        self,
        qkv: torch.Tensor,
        rotation: Rotation,
        norm: Norm | None,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        scale: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """All of a layer's attention between its two products.

        Queries, keys and values of the step [T, (H + 2 G) D]: `norm` (weight [H + G, D]) of each query and key head
        where there is one, rotation, keys and values into the cache, then causal attention of each query over the
        cached blocks of its own sequence. Returns [T, H D]. With `softcap`, scores become softcap * tanh(s / softcap).
        `sinks` [H] float32: a score of each head that takes its share of the weights and has no value (gpt-oss).
        """
        ...


class LatentPlan(Protocol):
    """Which blocks of latent rows the queries of one step read (DeepSeek-V2 2024): worked out once for all layers."""

    def run(
        self, queries: torch.Tensor, rows: torch.Tensor, cache: torch.Tensor, value_size: int, scale: float
    ) -> torch.Tensor:
        """The step's rows [T, size] go into the cache; then causal attention of queries [T, H, size] over the cached
        rows of their own sequences. All heads share a row as their key; its first numbers are their value. Returns
        [T, H, value_size].
        """
        ...


class HeadProducts(Protocol):
    """A weight of its own for each head."""

    nbytes: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, H, in] to [T, H, out]: each head times its own weight."""
        ...


class BidirectionalPlan(Protocol):
    """Where the texts of one pass of an encoder begin: worked out once, run by each layer."""

    def run(self, qkv: torch.Tensor, rotation: Rotation | None = None) -> torch.Tensor:
        """Attention of each token of a text to those of the text that it sees, scaled by the root of D.

        Queries, keys and values of the texts, one text after the other, [T, 3 H D]; queries and keys are rotated first
        where that is given. Returns [T, H D].
        """
        ...


class Kernels:
    """The reference backend: complete, and on any device torch has.

    The other backends derive from it, and replace the operations that they compute faster. T tokens of one step; other
    letters as said where they are used. All tensors are on the backend's device.
    """

    name = "torch"
    """For logs and metrics."""
    packed_layout: str | None = None
    """Names the layout of packed weights; changes whenever their meaning does. None: they cannot be kept in files."""
    captures_steps = False
    """Whether a device may repeat the operations of a step without the host: none of them asks it for anything."""
    reads_shared_prefixes = False
    """Whether attention looks at `PagedBatch.shares_prefix`."""
    weights_may_move = True
    """Whether the tensors that layers were packed into may get memory at other addresses later."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")

    def memory_bytes(self) -> int:
        """Memory of the device that this process may use."""
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None or accelerator.type != self.device.type:
            return usable_memory()
        return int(torch.accelerator.get_memory_info(self.device)[1])

    def device_memory(self) -> DeviceMemory | None:
        """Memory of a device of its own; None where the device's memory is the machine's."""
        if self.device.type == "cpu" or torch.accelerator.current_accelerator() is None:
            return None
        free, total = torch.accelerator.get_memory_info(self.device)
        return DeviceMemory.of(int(total), int(free), int(torch.accelerator.memory_reserved(self.device)))

    @property
    def computes_beside_host(self) -> bool:
        """Whether operations return before they are computed, so that the host can prepare the next ones."""
        return self.device.type != "cpu"

    def preferred_dtype(self) -> torch.dtype:
        """Type of plain weights that this backend is fastest with on this device.

        bfloat16, except on processors without instructions for it: there a bfloat16 product of more than four rows is
        about seven times slower than a float32 one.
        """
        slow = self.device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return torch.float32 if slow else torch.bfloat16

    @property
    def first_uses(self) -> int:
        """How often an operation of this process had to be compiled, or read from disk, when it was called: the time
        that this took says nothing of the next call."""
        return 0

    def compile_ahead(self, run: Callable[[], None], threads: int) -> None:
        """Begin to compile, in threads, the operations that `run` calls, in their order; an operation that is called
        meanwhile waits for itself alone. `run` is called before this returns, and computes nothing: what operations
        give there is memory as it was, and nothing may depend on it."""

    def stop_compiling(self) -> None:
        """Compile nothing more ahead. Idempotent."""

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raise UnsupportedByBackendError where plain weights of a type are not multiplied."""

    def activation_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Type of the numbers between two operations of a model whose weights are of type `dtype`."""
        return dtype

    def quantize(self, weight: torch.Tensor, to: Quantization) -> Weight:
        """A float weight [out, in] with fewer bits, on this device; the same bits on all."""
        return quantize(weight.to(self.device), to)

    def pack_linear(
        self, weight: Weight, bias: torch.Tensor | None = None, activation: Activation | None = None
    ) -> Linear:
        """Bring a weight [out, in] (and bias [out]) once, at load, into the form this backend multiplies fastest.

        With `activation` the weight is gated: gate above up, and the layer gives activation(gate) * up.
        """
        return TorchLinear(weight.to(self.device), None if bias is None else bias.to(self.device), activation)

    def pack_plain(
        self,
        parts: Sequence[torch.Tensor],
        to: torch.dtype | Quantization,
        bias: torch.Tensor | None = None,
        activation: Activation | None = None,
    ) -> Linear:
        """`pack_linear` of float weights [out, in] one below the other, in a type or quantized.

        Raises UnsupportedByBackendError where the backend does not multiply such weights.
        """
        weight = concatenate([Weight(part) for part in parts], self.device)
        assert weight is not None, "all are float"
        # The plain weight is let go before its successor is packed: the device may have no room for all three.
        weight = Weight(weight.values.to(to)) if isinstance(to, torch.dtype) else self.quantize(weight.values, to)
        return self.pack_linear(weight, bias, activation)

    def save_linear(self, layer: Linear) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """What the bytes of a layer mean, as JSON values, and its tensors by name, which are not copied.

        `blob` (uint8, a multiple of 64 bytes) must begin on a 64-byte boundary when it is loaded.
        """
        raise UnsupportedByBackendError("only the compiled kernels keep packed weights")

    def load_linear(self, form: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Linear:
        """The layer again, from the same bytes, which may be a read-only map of a file.

        Raises KernelError where form and tensors do not fit together.
        """
        raise UnsupportedByBackendError("only the compiled kernels keep packed weights")

    def route(
        self, numbers: torch.Tensor, experts_per_token: int, spec: RouterSpec, choice_bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Shares [T, experts_per_token] float32 and experts [T, experts_per_token] int64 of T tokens, of their router's
        numbers [T, experts]; `choice_bias` [experts] float32."""
        return route(numbers, experts_per_token, spec, choice_bias, partial(self.activation, activation="sigmoid"))

    def group_experts(
        self, gate_up: Sequence[Linear], down: Sequence[Linear], clamp: tuple[float, float] | None
    ) -> GroupedExperts | None:
        """The experts of a layer, by their packed layers, as two products over all tokens; None where this backend
        computes expert after expert. The layers can be used as before.

        `clamp`: limit and slope of the gate of gpt-oss, where that joins gate and up; then the first layers are packed
        without an activation.
        """
        return None

    def rms_norm(
        self,
        x: torch.Tensor,
        norm: Norm,
        *,
        mean_square: torch.Tensor | None = None,
        add_to: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Root-mean-square norm of the last dimension, computed in float32 and rounded once to x's dtype.

        `mean_square` [..., 1] replaces the mean of squares where x is only one shard of the vector to be normalised.
        `add_to`: the result is added to it in place, and it is returned.
        """
        out = rms_norm(x, norm, mean_square)
        return out if add_to is None else add_to.add_(out)

    def layer_norm(self, x: torch.Tensor, norm: LayerNorm) -> torch.Tensor:
        """Layer norm of the last dimension, in x's dtype. Torch's own norms each row by itself."""
        return F.layer_norm(x, (x.shape[-1],), norm.weight, norm.bias, norm.eps)

    def activation(self, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        """The activation of each number."""
        return activate(x, activation)

    def new_kv_cache(self, num_layers: int, num_blocks: int, heads: HeadShape, dtype: KvDtype) -> KVCache:
        """An empty cache; in main memory, pages are supplied as they are first used.

        Here tensors [num_blocks, kv_heads, block_size, head_dim]. Raises UnsupportedByBackendError where the backend
        has no cache of that type.
        """
        if dtype == "int8":
            raise UnsupportedByBackendError(
                "an int8 KV cache needs the compiled kernels: set `kernels` to cpu (where they are missing, it says "
                "how to get them), or kv_cache_dtype to bfloat16"
            )
        if dtype == "fp8":
            raise UnsupportedByBackendError("an fp8 KV cache needs the kernels of GPUs: set kv_cache_dtype to auto")
        shape = (num_blocks, heads.kv, BLOCK_SIZE, heads.dim)
        torch_dtype = torch.float32 if dtype == "float32" else torch.bfloat16
        keys, values = (
            tuple(zeros_on_demand(shape, torch_dtype, self.device) for _ in range(num_layers)) for _ in range(2)
        )
        return KVCache(keys, values)

    def new_latent_cache(self, num_layers: int, num_blocks: int, size: int, dtype: KvDtype) -> KVCache:
        """An empty cache of rows of `size` numbers: keys [num_blocks, 1, block_size, size], and no values."""
        if dtype in ("int8", "fp8"):
            raise UnsupportedByBackendError("latent rows are cached in bfloat16 or float32: set kv_cache_dtype to one")
        torch_dtype = torch.float32 if dtype == "float32" else torch.bfloat16
        shape = (num_blocks, 1, BLOCK_SIZE, size)
        return KVCache(tuple(zeros_on_demand(shape, torch_dtype, self.device) for _ in range(num_layers)), ())

    def new_states(self, num_layers: int, num_places: int, dims: DeltaDimensions) -> StateCache:
        """Recurrent states of sequences without tokens; in main memory, pages are supplied as they are first used."""
        shapes = (
            (num_layers, num_places, dims.value_heads, dims.key_dim, dims.value_dim),
            (num_layers, num_places, dims.window - 1, dims.channels),
        )
        return StateCache(*(zeros_on_demand(shape, torch.float32, self.device) for shape in shapes))

    def new_adapter_memory(self, cache: KVCache, dtype: torch.dtype) -> AdapterMemory:
        """Adapters in the blocks of a cache, their weights in `dtype`: bfloat16 or float32."""
        return TorchAdapterMemory(cache, dtype)

    def plan_attention(self, batch: PagedBatch, heads: HeadShape, window: int | None = None) -> AttentionPlan:
        """The attention of one step. `window`: tokens a query sees, itself included; None sees all before it."""
        return plan_attention(batch, heads, window)

    def plan_latent(self, batch: PagedBatch, num_heads: int, size: int) -> LatentPlan:
        """The attention of one step over latent rows of `size` numbers."""
        return TorchLatentPlan.of(batch, num_heads, size)

    def plan_delta(self, batch: PagedBatch, dims: DeltaDimensions) -> DeltaPlan:
        """The gated delta rule of one step, which must say where its states are."""
        return TorchDeltaPlan.of(batch, dims)

    def head_products(self, weight: torch.Tensor) -> HeadProducts:
        """Products by head, of a float weight [H, out, in]."""
        return TorchHeadProducts(weight.to(self.device))

    def plan_bidirectional(
        self, lengths: torch.Tensor, heads: HeadShape, window: int | None = None
    ) -> BidirectionalPlan:
        """The attention of S texts of these lengths [S] int64, none empty. `window`: tokens that a token sees to either
        side, itself included; None: it sees all of its text."""
        return TorchBidirectionalPlan.of(lengths, heads, window)

    def decoder_layers(self, parts: DecoderParts) -> DecoderLayers | None:
        """Layers of a decoder in one call; None where this backend has nothing faster than single calls."""
        return None

    def greedy_decoder(self, parts: GreedyParts, cache: KVCache) -> GreedyDecoder | None:
        """Many passes of a decoder in one call; None where this backend has nothing faster than single passes."""
        return None

    def most_likely(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[R] int64 token and [R] float32 logit of the maximum of each row of logits [R, vocab] float32.

        Ties go to the lowest id; a row that holds NaN gives the first one.
        """
        return most_likely(logits)

    def mask_logits(self, logits: torch.Tensor, masks: Mapping[int, bytes | memoryview]) -> None:
        """Leave rows of logits [R, vocab] float32 only the tokens that their masks allow, in place; the others become
        minus infinity. A mask has a bit for each token, in whole words of 32."""
        for row, mask in masks.items():
            banned = np.flatnonzero(~unpack_mask(mask, logits.shape[1]))
            logits[row, torch.from_numpy(banned).to(logits.device)] = -torch.inf

    def draw_tokens(
        self, logits: torch.Tensor, rows: torch.Tensor, row_max: torch.Tensor, params: SamplingTensors
    ) -> torch.Tensor:
        """A token for each of some rows, as `kvarn.kernels.sampling` defines it.

        Args:
            logits: [N, vocab] float32; -inf masks a token.
            rows: [R] int64, the rows of `logits` to draw for.
            row_max: [R] float32, the largest logit of each of them; finite.
            params: of the R rows.

        Returns:
            [R] int64 token ids.
        """
        return draw_tokens(logits, rows, row_max, params)
