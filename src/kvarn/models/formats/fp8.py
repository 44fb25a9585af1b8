"""fp8 with a scale for each block of a weight, as DeepSeek-V3 stores it.

For a layer [out, in] and blocks of `weight_block_size` [b, c]:

    weight            [out, in]                    float8 (E4M3)
    weight_scale_inv  [ceil(out / b), ceil(in / c)]  float32: what the numbers of a block are multiplied with

Layers without scales are plain. No kernel here multiplies fp8: weights are widened when they are read, and held in the
type of plain weights, or quantized to what the operator asks for.
"""

from __future__ import annotations

from kvarn.kernels.weights import Weight
from kvarn.models.formats.base import Warn, WeightFormat
from kvarn.models.loading.checkpoint import Checkpoint
from kvarn.specs.quantization import QuantizationConfig


class Fp8Format(WeightFormat):
    beside_weights = (".weight_scale_inv",)

    def __init__(self, checkpoint: Checkpoint, config: QuantizationConfig, warn: Warn) -> None:
        super().__init__(checkpoint)
        assert config.weight_block_size is not None, "`check_supported` has refused others"
        self._rows, self._columns = config.weight_block_size
        warn("the checkpoint's fp8 weights are widened: they take twice their memory in bfloat16 (or set quantization)")

    def read(self, name: str, shape: tuple[int, int]) -> Weight:
        if f"{name}.weight_scale_inv" not in self.checkpoint:
            return super().read(name, shape)
        rows, columns = self._rows, self._columns
        blocks = (-(-shape[0] // rows), -(-shape[1] // columns))
        scales = self.checkpoint.tensor(f"{name}.weight_scale_inv", blocks).float()
        scales = scales.repeat_interleave(rows, 0)[: shape[0]].repeat_interleave(columns, 1)[:, : shape[1]]
        return Weight(self.checkpoint.tensor(f"{name}.weight", shape).float().mul_(scales))
