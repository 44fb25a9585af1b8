"""GPTQ (Frantar et al. 2022) as AutoGPTQ and GPTQModel store it.

For a layer [out, in] with b bits (4 or 8) and G groups:

    qweight [in * b / 32, out]    int32: each word holds 32 / b inputs of one output, the first in its lowest bits
    qzeros  [G, out * b / 32]     int32: each word holds the zero points of 32 / b outputs
    scales  [G, out]              a float type
    g_idx   [in]                  int32: the group of each input; not in order where `desc_act` reordered them

The first format (`checkpoint_format` gptq, or none) stores zero points less one; `gptq_v2` stores them as they are.
GPTQModel subtracts the ones from whole words, so that a zero point of 0 borrows from the next one, and adds them to
whole words when it reads. AutoGPTQ subtracts before it packs: the same, but that a zero point of 0 spoils the rest of
its word (https://github.com/AutoGPTQ/AutoGPTQ/pull/640), which no reader can mend. Symmetric weights have their zero in
the middle, even where a checkpoint of the first format stores it as the second does
(https://github.com/vllm-project/vllm/pull/38966).
"""

from __future__ import annotations

import torch

from kvarn.kernels.weights import Weight
from kvarn.models.formats.base import Warn, WeightFormat
from kvarn.models.formats.quantized_values import QuantizedValues, unpack_words
from kvarn.models.loading.checkpoint import Checkpoint
from kvarn.specs.errors import WeightShapeError
from kvarn.specs.quantization import QuantizationConfig


class GptqFormat(WeightFormat):
    name = "gptq"
    packed_suffix = ".qweight"
    beside_weights = (".qzeros", ".scales", ".g_idx")

    def __init__(self, checkpoint: Checkpoint, config: QuantizationConfig, warn: Warn) -> None:
        super().__init__(checkpoint)
        self._warn = warn
        self._bits = config.bits or 4
        self._symmetric = config.sym is True
        self._zeros_are_whole = config.checkpoint_format == "gptq_v2"
        self._group_size = config.group_size or -1

    def read(self, name: str, shape: tuple[int, int]) -> Weight:
        """Bits and groups may differ from layer to layer: they follow from the tensors' shapes."""
        if f"{name}.qweight" not in self.checkpoint:
            return super().read(name, shape)
        out_features, in_features = shape
        qweight = self.checkpoint.stored(f"{name}.qweight")
        bits = next((bits for bits in (4, 8) if qweight.shape == (in_features * bits // 32, out_features)), None)
        if bits is None:
            expected = (in_features * self._bits // 32, out_features)
            raise WeightShapeError(f"{name}.qweight", expected, tuple(qweight.shape))
        scales = self.checkpoint.stored(f"{name}.scales")
        group = self._group(name, in_features, scales)
        return QuantizedValues(
            bits=bits,
            values=unpack_words(qweight.t(), bits),
            scales=scales.t(),
            zeros=self._zeros(name, (scales.shape[0], out_features * bits // 32), bits),
            group=group,
            group_of=self.group_of(f"{name}.g_idx", in_features),
        ).weight(name, self._warn)

    def numbers_in_word(self, name: str) -> int:
        return 32 // self._bits

    def _group(self, name: str, in_features: int, scales: torch.Tensor) -> int:
        groups = scales.shape[0]
        if groups == 1:
            return in_features
        if self._group_size > 0 and -(-in_features // self._group_size) == groups:
            return self._group_size
        if in_features % groups:
            expected = -(-in_features // self._group_size) if self._group_size > 0 else 1
            raise WeightShapeError(f"{name}.scales", (expected, scales.shape[1]), tuple(scales.shape))
        return in_features // groups

    def _zeros(self, name: str, shape: tuple[int, int], bits: int) -> torch.Tensor | None:
        """[out, groups] uint8; None: the middle everywhere. `shape` is that of the words."""
        stored = self.checkpoint.tensor(f"{name}.qzeros", shape)
        middle = 1 << (bits - 1)
        if self._symmetric and any(bool((unpack_words(stored, bits) == zero).all()) for zero in (middle - 1, middle)):
            return None
        return unpack_words(stored if self._zeros_are_whole else _plus_one(stored, bits), bits).t().contiguous()


def _plus_one(words: torch.Tensor, bits: int) -> torch.Tensor:
    """One added to each number of int32 words, carries going on to the next number."""
    ones = sum(1 << place for place in range(0, 32, bits))
    return (words.long() + ones).to(torch.int32)
