"""AWQ (Lin et al. 2023) as AutoAWQ stores it, version `gemm` (GPTQModel calls it `checkpoint_format`).

For a layer [out, in] with 4 bits and G groups:

    qweight [in, out / 8]    int32: each word holds eight outputs of one input
    qzeros  [G, out / 8]     int32: zero points of eight outputs
    scales  [G, out]         float16

From its lowest bits up, a word holds outputs 0, 2, 4, 6, 1, 3, 5, 7 of its eight.
"""

from __future__ import annotations

import torch

from kvarn.kernels.weights import Weight
from kvarn.models.formats.base import Warn, WeightFormat
from kvarn.models.formats.quantized_values import QuantizedValues, unpack_words
from kvarn.models.loading.checkpoint import Checkpoint
from kvarn.specs.quantization import QuantizationConfig

_PLACE_OF_OUTPUT = (0, 4, 1, 5, 2, 6, 3, 7)
"""Place in its word of each of eight outputs, counted from the lowest bits."""


class AwqFormat(WeightFormat):
    name = "awq"
    packed_suffix = ".qweight"
    beside_weights = (".qzeros", ".scales")

    def __init__(self, checkpoint: Checkpoint, config: QuantizationConfig, warn: Warn) -> None:
        super().__init__(checkpoint)
        self._warn = warn
        self._group_size = config.group_size or config.q_group_size or 128

    def read(self, name: str, shape: tuple[int, int]) -> Weight:
        if f"{name}.qweight" not in self.checkpoint:
            return super().read(name, shape)
        out_features, in_features = shape
        group = in_features if self._group_size <= 0 else self._group_size
        groups = -(-in_features // group)
        return QuantizedValues(
            bits=4,
            values=_unpack(self.checkpoint.tensor(f"{name}.qweight", (in_features, out_features // 8))),
            scales=self.checkpoint.tensor(f"{name}.scales", (groups, out_features)).t(),
            zeros=_unpack(self.checkpoint.tensor(f"{name}.qzeros", (groups, out_features // 8))),
            group=group,
        ).weight(name, self._warn)

    def numbers_in_word(self, name: str) -> int:
        return 8


def _unpack(words: torch.Tensor) -> torch.Tensor:
    """[n, out / 8] int32 to [out, n] uint8."""
    nibbles = unpack_words(words, 4).view(words.shape[0], -1, 8)
    return nibbles[:, :, list(_PLACE_OF_OUTPUT)].flatten(1).t().contiguous()
