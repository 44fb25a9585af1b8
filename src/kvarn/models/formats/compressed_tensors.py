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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kvarn.kernels.weights import Weight
from kvarn.models.checkpoint import Checkpoint
from kvarn.models.errors import CheckpointError, WeightShapeError
from kvarn.models.formats.base import PlainFormat, UnsupportedQuantizationError, Warn
from kvarn.models.formats.quantized_values import QuantizedValues, int8_weight, unpack_words

_FORMATS = ("int-quantized", "naive-quantized", "pack-quantized")


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the weights of some layers are quantized."""

    targets: tuple[str, ...]
    bits: int
    symmetric: bool
    group_size: int | None
    """Inputs of a group; None: a scale for each output, or one in all."""

    @staticmethod
    def of(scheme: Any, default_format: str) -> Scheme:
        """One of the `config_groups`. Raises UnsupportedQuantizationError."""
        if not isinstance(scheme, Mapping) or not isinstance(scheme.get("weights"), Mapping):
            raise UnsupportedQuantizationError(f"the compressed-tensors scheme {scheme}")
        form = scheme.get("format") or default_format
        if form not in _FORMATS:
            raise UnsupportedQuantizationError(f"compressed-tensors in the format {form!r}")
        weights, activations = scheme["weights"], scheme.get("input_activations")
        group_size = weights.get("group_size")
        strategy = weights.get("strategy") or ("group" if group_size and group_size > 0 else "channel")
        if weights.get("type", "int") != "int" or weights.get("num_bits", 8) not in (4, 8):
            raise UnsupportedQuantizationError(f"compressed-tensors with weights {dict(weights)}")
        if strategy not in ("tensor", "channel", "group") or (strategy == "group" and (group_size or 0) < 1):
            raise UnsupportedQuantizationError(
                f"compressed-tensors with the strategy {strategy!r}, group_size {group_size}"
            )
        if activations is not None and not _dynamic_int8(activations):
            raise UnsupportedQuantizationError(f"compressed-tensors with activations {dict(activations)}")
        if scheme.get("output_activations") is not None:
            raise UnsupportedQuantizationError("compressed-tensors with output activations")
        return Scheme(
            targets=tuple(scheme.get("targets") or ("Linear",)),
            bits=int(weights.get("num_bits", 8)),
            symmetric=bool(weights.get("symmetric", True)),
            group_size=int(group_size) if strategy == "group" else None,
        )

    def names(self, layer: str) -> bool:
        """Whether a target is the layer's name or, after `re:`, an expression that its name begins with."""
        try:
            return any(re.match(t[3:], layer) if t.startswith("re:") else t == layer for t in self.targets)
        except re.error as error:
            raise CheckpointError(f"config.json: {error.pattern!r} in the targets is no expression: {error}") from None


class CompressedTensorsFormat(PlainFormat):
    """See `kvarn.models.formats.base.WeightFormat`."""

    name = "compressed-tensors"
    packed_suffix = ".weight_packed"
    beside_weights = (".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx")

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any], warn: Warn) -> None:
        super().__init__(checkpoint)
        self._warn = warn
        groups = config.get("config_groups") or {}
        self._schemes = [Scheme.of(scheme, str(config.get("format"))) for scheme in groups.values()]
        for part in ("sparsity_config", "transform_config"):
            _check_absent(part, config.get(part))
        if config.get("kv_cache_scheme"):
            warn("the checkpoint's kv_cache_scheme is not used: --kv-cache-dtype says how keys and values are cached")

    def read(self, name: str, shape: tuple[int, int]) -> Weight:
        """Which form a layer has, its tensors say."""
        packed = f"{name}.weight_packed" in self.checkpoint
        if not packed and f"{name}.weight_scale" not in self.checkpoint:
            return super().read(name, shape)
        scheme = self._scheme(name)
        if packed:
            values = self._packed(name, shape, scheme.bits)
        else:
            stored = self.checkpoint.tensor(f"{name}.weight", shape)
            if stored.dtype != torch.int8:
                raise CheckpointError(
                    f"{name}.weight has a scale, but holds {stored.dtype}, not int8: the checkpoint was saved before "
                    "it was compressed (save it with save_compressed=True)"
                )
            if scheme.bits == 8 and scheme.symmetric and scheme.group_size is None:
                return int8_weight(stored, self._scales(name, shape[0], 1)[:, 0])
            values = _unsigned(stored, scheme.bits)
        return self._quantized(name, values, scheme).weight(name, self._warn)

    def numbers_in_word(self, name: str) -> int:
        """Of as many bits as the layer's scheme says."""
        return 32 // self._scheme(name.removesuffix(self.packed_suffix)).bits

    def _quantized(self, name: str, values: torch.Tensor, scheme: Scheme) -> QuantizedValues:
        out_features, in_features = values.shape
        group = scheme.group_size or in_features
        groups = -(-in_features // group)
        return QuantizedValues(
            bits=scheme.bits,
            values=values,
            scales=self._scales(name, out_features, groups),
            zeros=None if scheme.symmetric else self._zeros(name, (out_features, groups), scheme.bits),
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

    def _scheme(self, layer: str) -> Scheme:
        """The scheme whose targets name the layer, before one for its class."""
        for scheme in self._schemes:
            if scheme.names(layer):
                return scheme
        for name in ("Embedding", "Linear") if layer.endswith("embed_tokens") else ("Linear",):
            for scheme in self._schemes:
                if name in scheme.targets:
                    return scheme
        raise CheckpointError(f"config.json has no quantization scheme for {layer}, whose weight is quantized")


def _unsigned(values: torch.Tensor, bits: int) -> torch.Tensor:
    return (values.to(torch.int16) + (1 << (bits - 1))).to(torch.uint8)


def _dynamic_int8(activations: Mapping[str, Any]) -> bool:
    """Activations that are quantized as they come; the kernels do it for each token, symmetrically."""
    return (
        activations.get("type", "int") == "int"
        and activations.get("num_bits") == 8
        and activations.get("dynamic") is True
    )


def _check_absent(part: str, value: Any) -> None:
    """`sparsity_config` and `transform_config` are often there and say nothing."""
    if isinstance(value, Mapping) and (value.get("config_groups") or value.get("format", "dense") != "dense"):
        raise UnsupportedQuantizationError(f"compressed-tensors with {part} {dict(value)}")
