"""GPTQ (Frantar et al. 2022) as AutoGPTQ and GPTQModel store it.

For a layer [out, in] with b bits (4 or 8) and G groups:

    qweight [in * b / 32, out]    int32: each word holds 32 / b inputs of one output, the first in its lowest bits
    qzeros  [G, out * b / 32]     int32: each word holds the zero points of 32 / b outputs
    scales  [G, out]              a float type
    g_idx   [in]                  int32: the group of each input; not in order where `desc_act` reordered them

The first format (`checkpoint_format` gptq, or none) stores zero points less one, in b bits; `gptq_v2` stores them as
they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from kvarn.models.checkpoint import Checkpoint
from kvarn.models.errors import WeightShapeError
from kvarn.models.formats.base import Note, UnsupportedQuantizationError
from kvarn.models.formats.codes import Codes, unpack_words, weight_part
from kvarn.models.weight_parts import WeightPart

_BESIDE_WEIGHTS = (".qzeros", ".scales", ".g_idx")


class GptqFormat:
    """See `kvarn.models.formats.base.WeightFormat`."""

    name = "gptq"

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any], note: Note) -> None:
        self._checkpoint = checkpoint
        self._note = note
        self._bits = int(config.get("bits", 4))
        if self._bits not in (4, 8):
            raise UnsupportedQuantizationError(f"GPTQ in {self._bits} bits")
        version = "marlin" if config.get("is_marlin_format") else config.get("checkpoint_format") or "gptq"
        if version not in ("gptq", "gptq_v2"):
            raise UnsupportedQuantizationError(f"GPTQ in the format {version!r}")
        self._zero_offset = 1 if version == "gptq" else 0
        self._group_size = int(config.get("group_size", -1))

    def read(self, name: str, shape: tuple[int, int]) -> WeightPart:
        """Bits and groups may differ from layer to layer: they follow from the tensors' shapes."""
        if f"{name}.qweight" not in self._checkpoint:
            return WeightPart(self._checkpoint.tensor(f"{name}.weight", shape))
        out_features, in_features = shape
        qweight = self._checkpoint.stored(f"{name}.qweight")
        bits = next((bits for bits in (4, 8) if qweight.shape == (in_features * bits // 32, out_features)), None)
        if bits is None:
            expected = (in_features * self._bits // 32, out_features)
            raise WeightShapeError(f"{name}.qweight", expected, tuple(qweight.shape))
        scales = self._checkpoint.stored(f"{name}.scales")
        group = self._group(name, in_features, scales)
        zeros = self._checkpoint.tensor(f"{name}.qzeros", (scales.shape[0], out_features * bits // 32))
        zeros = (unpack_words(zeros, bits) + self._zero_offset) & (2**bits - 1)
        codes = Codes(
            bits=bits,
            values=unpack_words(qweight.t(), bits),
            scales=scales.t(),
            zeros=zeros.t().contiguous(),
            group=group,
            group_of=self._group_of(name, in_features),
        )
        return weight_part(codes, name, self._note)

    def num_parameters(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Of packed weights, the numbers they hold."""
        factors = {name: 32 // self._bits if name.endswith(".qweight") else 1 for name in shapes}
        weights = (name for name in shapes if not name.endswith(_BESIDE_WEIGHTS))
        return sum(math.prod(shapes[name]) * factors[name] for name in weights)

    def _group(self, name: str, in_features: int, scales: torch.Tensor) -> int:
        groups = scales.shape[0]
        if groups == 1:
            return in_features
        if self._group_size > 0 and -(-in_features // self._group_size) == groups:
            return self._group_size
        if in_features % groups:
            raise WeightShapeError(
                f"{name}.scales", (-(-in_features // self._group_size), scales.shape[1]), tuple(scales.shape)
            )
        return in_features // groups

    def _group_of(self, name: str, in_features: int) -> torch.Tensor | None:
        if f"{name}.g_idx" not in self._checkpoint:
            return None
        return self._checkpoint.tensor(f"{name}.g_idx", (in_features,)).long()
