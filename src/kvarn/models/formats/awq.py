"""AWQ (Lin et al. 2023) as AutoAWQ stores it, version `gemm` (GPTQModel calls it `checkpoint_format`).

For a layer [out, in] with 4 bits and G groups:

    qweight [in, out / 8]    int32: each word holds eight outputs of one input
    qzeros  [G, out / 8]     int32: zero points of eight outputs
    scales  [G, out]         float16

From its lowest bits up, a word holds outputs 0, 2, 4, 6, 1, 3, 5, 7 of its eight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from kvarn.models.checkpoint import Checkpoint
from kvarn.models.formats.base import Note, UnsupportedQuantizationError
from kvarn.models.formats.codes import Codes, unpack_words, weight_part
from kvarn.models.weight_parts import WeightPart

_PLACE_OF_OUTPUT = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in its word, counted from the lowest bits, each of eight outputs stands."""


class AwqFormat:
    """See `kvarn.models.formats.base.WeightFormat`."""

    name = "awq"

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any], note: Note) -> None:
        self._checkpoint = checkpoint
        self._note = note
        bits = config.get("bits", config.get("w_bit"))
        version = str(config.get("version") or config.get("checkpoint_format") or "gemm").lower()
        if bits != 4 or version != "gemm":
            raise UnsupportedQuantizationError(f"AWQ in {bits} bits, version {version!r}")
        self._group_size = config.get("group_size") or config.get("q_group_size") or 128

    def read(self, name: str, shape: tuple[int, int]) -> WeightPart:
        """Layers in `modules_to_not_convert` have a plain tensor."""
        if f"{name}.qweight" not in self._checkpoint:
            return WeightPart(self._checkpoint.tensor(f"{name}.weight", shape))
        out_features, in_features = shape
        group = in_features if self._group_size <= 0 else self._group_size
        groups = -(-in_features // group)
        codes = Codes(
            bits=4,
            values=_unpack(self._checkpoint.tensor(f"{name}.qweight", (in_features, out_features // 8))),
            scales=self._checkpoint.tensor(f"{name}.scales", (groups, out_features)).t(),
            zeros=_unpack(self._checkpoint.tensor(f"{name}.qzeros", (groups, out_features // 8))),
            group=group,
        )
        return weight_part(codes, name, self._note)

    def num_parameters(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Of packed weights, the numbers they hold."""
        weights = (name for name in shapes if not name.endswith((".qzeros", ".scales")))
        return sum(math.prod(shapes[name]) * (8 if name.endswith(".qweight") else 1) for name in weights)


def _unpack(words: torch.Tensor) -> torch.Tensor:
    """[n, out / 8] int32 to [out, n] uint8."""
    nibbles = unpack_words(words, 4).view(words.shape[0], -1, 8)
    return nibbles[:, :, list(_PLACE_OF_OUTPUT)].flatten(1).t().contiguous()
