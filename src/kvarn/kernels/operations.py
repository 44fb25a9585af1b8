"""Operations that a step computes: their meaning, the checks of their arguments, and the reference in plain torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from kvarn.kernels import checks
from kvarn.kernels.activation import Activation, activate
from kvarn.kernels.adapters import AdapterMemory
from kvarn.kernels.attention import AttentionMetadata, BidirectionalMetadata, LatentMetadata
from kvarn.kernels.batch import HeadShape, KVCache, PagedBatch, StateBatch, StateCache
from kvarn.kernels.decoder import DecoderLayers, DecoderParts, GreedyDecoder, GreedyParts
from kvarn.kernels.delta import DeltaMetadata
from kvarn.kernels.device.memory import zeros_on_demand
from kvarn.kernels.errors import UnsupportedByBackendError
from kvarn.kernels.experts import RouterSpec
from kvarn.kernels.linear import LayerNorm, Norm
from kvarn.kernels.sampling import SamplingTensors, unpack_mask
from kvarn.kernels.torch.adapters import TorchAdapterMemory
from kvarn.kernels.torch.attention import plan_attention
from kvarn.kernels.torch.bidirectional import TorchBidirectionalMetadata
from kvarn.kernels.torch.delta import TorchDeltaMetadata
from kvarn.kernels.torch.latent import TorchLatentMetadata
from kvarn.kernels.torch.linear import rms_norm
from kvarn.kernels.torch.router import route
from kvarn.kernels.torch.sampling import draw_tokens, most_likely
from kvarn.shapes import BLOCK_SIZE, KvDtype
from kvarn.shapes.attention import DeltaDimensions


class Operations:
    """The reference, on any device torch has. Other backends derive from it and replace what they compute faster.

    Arguments that no backend takes are refused here, with KernelInputError, before a method with an underscore
    computes. T tokens of one step; other letters as said where they are used. All tensors are on the device.
    """

    captures_steps = False
    """Whether a device may repeat the operations of a step without the host: none of them asks it for anything."""
    reads_shared_prefixes = False
    """Whether attention looks at `PagedBatch.shares_prefix`."""

    def __init__(self, device: torch.device) -> None:
        self.torch_device = device

    def activation_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Type of the numbers between two operations of a model whose weights are of type `dtype`."""
        return dtype

    def route(
        self, numbers: torch.Tensor, experts_per_token: int, spec: RouterSpec, choice_bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Shares [T, experts_per_token] float32 and experts [T, experts_per_token] int64 of T tokens, of their router's
        numbers [T, experts]; `choice_bias` [experts] float32."""
        return route(numbers, experts_per_token, spec, choice_bias, partial(self.activation, activation="sigmoid"))

    def norm(self, x: torch.Tensor, norm: Norm | LayerNorm) -> torch.Tensor:
        return self.layer_norm(x, norm) if isinstance(norm, LayerNorm) else self.rms_norm(x, norm)

    def rms_norm(self, x: torch.Tensor, norm: Norm, *, add_to: torch.Tensor | None = None) -> torch.Tensor:
        """Root-mean-square norm of the last dimension, computed in float32 and rounded once to x's dtype.

        `add_to`: the result is added to it in place, and it is returned.
        """
        out = rms_norm(x, norm)
        return out if add_to is None else add_to.add_(out)

    def layer_norm(self, x: torch.Tensor, norm: LayerNorm) -> torch.Tensor:
        """Layer norm of the last dimension, in x's dtype. Torch's own norms each row by itself."""
        return F.layer_norm(x, (x.shape[-1],), norm.weight, norm.bias, norm.eps)

    def activation(self, x: torch.Tensor, activation: Activation) -> torch.Tensor:
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
        return self._float_cache(num_layers, (num_blocks, heads.kv, BLOCK_SIZE, heads.dim), dtype)

    def new_latent_cache(self, num_layers: int, num_blocks: int, size: int, dtype: KvDtype) -> KVCache:
        """An empty cache of rows of `size` numbers: keys [num_blocks, 1, block_size, size], and no values."""
        if dtype in ("int8", "fp8"):
            raise UnsupportedByBackendError("latent rows are cached in bfloat16 or float32: set kv_cache_dtype to one")
        return self._float_cache(num_layers, (num_blocks, 1, BLOCK_SIZE, size), dtype, has_values=False)

    def _float_cache(
        self, num_layers: int, shape: tuple[int, ...], dtype: KvDtype, *, has_values: bool = True
    ) -> KVCache:
        torch_dtype = torch.float32 if dtype == "float32" else torch.bfloat16
        keys, values = (
            tuple(zeros_on_demand(shape, torch_dtype, self.torch_device) for _ in range(count))
            for count in (num_layers, num_layers if has_values else 0)
        )
        return KVCache(keys, values)

    def new_states(self, num_layers: int, num_places: int, dims: DeltaDimensions) -> StateCache:
        """Recurrent states of sequences without tokens; in main memory, pages are supplied as they are first used."""
        shapes = (
            (num_layers, num_places, dims.value_heads, dims.key_dim, dims.value_dim),
            (num_layers, num_places, dims.window - 1, dims.channels),
        )
        return StateCache(*(zeros_on_demand(shape, torch.float32, self.torch_device) for shape in shapes))

    def new_adapter_memory(self, cache: KVCache, dtype: torch.dtype) -> AdapterMemory:
        """Adapters in the blocks of a cache, their weights in `dtype`: bfloat16 or float32."""
        return TorchAdapterMemory(cache, dtype)

    def plan_attention(self, batch: PagedBatch, heads: HeadShape, window: int | None = None) -> AttentionMetadata:
        """The attention of one step. `window`: tokens a query sees, itself included; None sees all before it."""
        checks.check_heads(heads, window)
        checks.check_step(batch)
        return self._plan_attention(batch, heads, window)

    def _plan_attention(self, batch: PagedBatch, heads: HeadShape, window: int | None) -> AttentionMetadata:
        return plan_attention(batch, heads, window)

    def plan_latent(self, batch: PagedBatch, num_heads: int, size: int) -> LatentMetadata:
        """The attention of one step over latent rows of `size` numbers."""
        checks.check_step(batch)
        return self._plan_latent(batch, num_heads, size)

    def _plan_latent(self, batch: PagedBatch, num_heads: int, size: int) -> LatentMetadata:
        return TorchLatentMetadata.of(batch, num_heads, size)

    def plan_delta(self, batch: PagedBatch, dims: DeltaDimensions) -> DeltaMetadata:
        """The gated delta rule of one step, which must say where its states are."""
        return self._plan_delta(batch, checks.check_states(batch), dims)

    def _plan_delta(self, batch: PagedBatch, states: StateBatch, dims: DeltaDimensions) -> DeltaMetadata:
        return TorchDeltaMetadata(dims, states, batch.query_starts.tolist())

    def plan_bidirectional(
        self, lengths: torch.Tensor, heads: HeadShape, window: int | None = None
    ) -> BidirectionalMetadata:
        """The attention of S texts of these lengths [S] int64, none empty. `window`: tokens that a token sees to either
        side, itself included; None: it sees all of its text."""
        checks.check_heads(heads, window)
        return self._plan_bidirectional(lengths, heads, window)

    def _plan_bidirectional(self, lengths: torch.Tensor, heads: HeadShape, window: int | None) -> BidirectionalMetadata:
        return TorchBidirectionalMetadata.of(lengths, heads, window)

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
        checks.check_logits(logits)
        return self._most_likely(logits)

    def _most_likely(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return most_likely(logits)

    def mask_logits(self, logits: torch.Tensor, masks: Mapping[int, bytes | memoryview]) -> None:
        """Leave rows of logits [R, vocab] float32 only the tokens that their masks allow, in place; the others become
        minus infinity. A mask has a bit for each token, in whole words of 32."""
        words = checks.mask_words(logits, masks)
        if words:
            self._mask_logits(logits, list(masks), words)

    def _mask_logits(self, logits: torch.Tensor, rows: list[int], words: list[npt.NDArray[np.int32]]) -> None:
        for row, mask in zip(rows, words, strict=True):
            banned = np.flatnonzero(~unpack_mask(mask.data, logits.shape[1]))
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
        checks.check_logits(logits)
        checks.check_draw(rows, row_max, params)
        return self._draw_tokens(logits, rows, row_max, params)

    def _draw_tokens(
        self, logits: torch.Tensor, rows: torch.Tensor, row_max: torch.Tensor, params: SamplingTensors
    ) -> torch.Tensor:
        return draw_tokens(logits, rows, row_max, params)
