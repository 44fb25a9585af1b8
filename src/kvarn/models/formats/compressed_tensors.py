"""compressed-tensors (vLLM's llm-compressor): `int-quantized` and `pack-quantized`.

For a layer [out, in] with b bits and G groups (1 where the strategy is `channel`):

    int-quantized     weight             [out, in]            int8
    pack-quantized    weight_packed      [out, in * b / 32]   int32: 2^(b-1) added, the first input in the lowest bits
                      weight_shape       [2]                  out, in
    both              weight_scale       [out, G]             a float type; one number where the strategy is `tensor`
                      weight_zero_point  [out, G] int8, or packed along outputs [out * b / 32, G]; where asymmetric
                      weight_g_idx       [in]                 the group of each input; where `actorder` is `group`

Rows that do not fill their last word are padded. Layers that are ignored have a plain `weight` and no scale.
"""

from __future__ import annotations

import re

import torch

from kvarn.kernels.weights import Weight
from kvarn.models.formats.base import Warn, WeightFormat
from kvarn.models.formats.quantized_values import QuantizedValues, int8_weight, unpack_words
from kvarn.models.loading.checkpoint import Checkpoint
from kvarn.specs.errors import CheckpointError, WeightShapeError
from kvarn.specs.quantization import QuantizationConfig, QuantizedWeights


class CompressedTensorsFormat(WeightFormat):
    name = "compressed-tensors"
    packed_suffix = ".weight_packed"
    beside_weights = (".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx")

    def __init__(self, checkpoint: Checkpoint, config: QuantizationConfig, warn: Warn) -> None:
        super().__init__(checkpoint)
        self._warn = warn
        groups = (config.config_groups or {}).values()
        self._schemes = [(group.targets or ["Linear"], group.weights) for group in groups if group.weights is not None]
        """Targets, and how the weights of those layers are quantized."""
        if config.kv_cache_scheme:
            warn("the checkpoint's kv_cache_scheme is not used: --kv-cache-dtype says how keys and values are cached")

    def read(self, name: str, shape: tuple[int, int]) -> Weight:
        packed = f"{name}.weight_packed" in self.checkpoint
        if not packed and f"{name}.weight_scale" not in self.checkpoint:
            return super().read(name, shape)
        scheme = self._scheme(name)
        if packed:
            values = self._packed(name, shape, scheme.num_bits)
        else:
            stored = self.checkpoint.tensor(f"{name}.weight", shape)
            if stored.dtype != torch.int8:
                raise CheckpointError(
                    f"{name}.weight has a scale, but holds {stored.dtype}, not int8: the checkpoint was saved before "
                    "it was compressed (save it with save_compressed=True)"
                )
            if scheme.num_bits == 8 and scheme.symmetric and scheme.resolved_strategy != "group":
                return int8_weight(stored, self._scales(name, shape[0], 1)[:, 0])
            values = _unsigned(stored, scheme.num_bits)
        return self._quantized(name, values, scheme).weight(name, self._warn)

    def numbers_in_word(self, name: str) -> int:
        return 32 // self._scheme(name.removesuffix(self.packed_suffix)).num_bits

    def _quantized(self, name: str, values: torch.Tensor, scheme: QuantizedWeights) -> QuantizedValues:
        out_features, in_features = values.shape
        group = scheme.group_size if scheme.resolved_strategy == "group" else None
        group = group or in_features
        groups = -(-in_features // group)
        return QuantizedValues(
            bits=scheme.num_bits,
            values=values,
            scales=self._scales(name, out_features, groups),
            zeros=None if scheme.symmetric else self._zeros(name, (out_features, groups), scheme.num_bits),
            group=group,
            group_of=self._groups(name, in_features),
        )

    def _scales(self, name: str, out_features: int, groups: int) -> torch.Tensor:
        """[out_features, groups]; some write those of whole rows without the second dimension."""
        scales = self.checkpoint.stored(f"{name}.weight_scale")
        if scales.numel() == 1:
            return scales.reshape(1, 1).expand(out_features, groups)
        of_rows = groups == 1 and scales.shape == (out_features,)
        if not of_rows and scales.shape != (out_features, groups):
            raise WeightShapeError(f"{name}.weight_scale", (out_features, groups), tuple(scales.shape))
        return scales.reshape(out_features, groups)

    def _packed(self, name: str, shape: tuple[int, int], bits: int) -> torch.Tensor:
        words = self.checkpoint.tensor(f"{name}.weight_packed", (shape[0], -(-shape[1] * bits // 32)))
        return unpack_words(words, bits)[:, : shape[1]].contiguous()

    def _zeros(self, name: str, shape: tuple[int, int], bits: int) -> torch.Tensor:
        stored = self.checkpoint.stored(f"{name}.weight_zero_point")
        if stored.dtype == torch.int32:
            return unpack_words(stored.t(), bits)[:, : shape[0]].t().contiguous()
        return _unsigned(stored.reshape(-1, shape[1]).expand(shape), bits).contiguous()

    def _groups(self, name: str, in_features: int) -> torch.Tensor | None:
        found = self.group_of(f"{name}.weight_g_idx", in_features)
        return None if found is None or bool((found < 0).any()) else found  # -1: made, but never set

    def _scheme(self, layer: str) -> QuantizedWeights:
        """The scheme whose targets name the layer, before one for its class."""
        for targets, weights in self._schemes:
            if any(_names(target, layer) for target in targets):
                return weights
        for name in ("Embedding", "Linear") if layer.endswith("embed_tokens") else ("Linear",):
            for targets, weights in self._schemes:
                if name in targets:
                    return weights
        raise CheckpointError(f"config.json has no quantization scheme for {layer}, whose weight is quantized")


def _names(target: str, layer: str) -> bool:
    """Whether a target is the layer's name or, after `re:`, an expression that its name begins with."""
    try:
        return bool(re.match(target[3:], layer)) if target.startswith("re:") else target == layer
    except re.error as error:
        raise CheckpointError(f"config.json: {error.pattern!r} in the targets is no expression: {error}") from None


def _unsigned(values: torch.Tensor, bits: int) -> torch.Tensor:
    return (values.to(torch.int16) + (1 << (bits - 1))).to(torch.uint8)
