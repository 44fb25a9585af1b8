"""A decoder going on with its own likeliest tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from kvarn.kernels.batch import PagedBatch, Rotation
from kvarn.kernels.decoder import GreedyDecoder


class GreedyPasses:
    """Many passes of one decoder over one cache, in one call of the kernels."""

    def __init__(self, native: GreedyDecoder, rotations: Sequence[Callable[[torch.Tensor], Rotation]]) -> None:
        """`rotations`: by kind of layer, the angles of positions [N]."""
        self._native = native
        self._rotations = rotations

    @torch.inference_mode()
    def run(
        self, token_ids: torch.Tensor, batch: PagedBatch, active: npt.NDArray[np.int64], vocab_size: int
    ) -> npt.NDArray[np.int64]:
        """See `kvarn.kernels.decoder.GreedyDecoder.run`."""
        ends = batch.context_lens.to(torch.int64)
        further = [ends[:count] + number for number, count in enumerate(active.tolist())]
        positions = torch.cat([batch.positions, *further])
        return self._native.run(token_ids, batch, [of(positions) for of in self._rotations], active, vocab_size)
