"""Steps of all sizes for which kernels differ, to compile these before they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from kvarn.kernels.batch import KVCache, PagedBatch, StateBatch
from kvarn.kernels.sampling import SamplingTensors
from kvarn.models import Decoder
from kvarn.shapes import BLOCK_SIZE

_FIRST = BLOCK_SIZE
"""Tokens of the prompt of the warm-up."""
MAX_LOGITS = 256
"""Most rows of logits computed together, unless more sequences draw."""

BUCKETS = (1, 2, 4, 8, *range(16, 257, 8), *range(272, 513, 16), *range(576, 4097, 64))
"""Numbers of tokens for which a step is captured; smaller steps are filled up."""
MIN_WIDTH = 64
"""Smallest room for a sequence's blocks in a captured step; larger ones are powers of two."""


@dataclass(frozen=True, slots=True)
class StepSizes:
    sequences: int
    tokens: int
    context: int

    def steps(self) -> Iterator[tuple[int, int, int, bool]]:
        """Sequences, tokens of each, blocks of the longest one, whether they share a prefix: those of an engine's start
        first, then by the number of rows, on which kernels depend in steps of powers of two."""
        few, many = 1, -(-self.context // BLOCK_SIZE)
        yield 1, min(_FIRST, self.tokens), few, False
        yield 1, 1, few, False
        yield min(2, self.sequences), 1, many, self.sequences > 1
        for rows in _powers(2, self.tokens):
            yield 1, rows, many, False
        for rows in _powers(4, min(self.sequences, self.tokens)):
            yield rows, 1, many, False


def captured_width(blocks: int) -> int:
    """Room for a sequence's blocks in the tables of captured steps, at least `blocks`."""
    return max(MIN_WIDTH, 1 << max(0, blocks - 1).bit_length())


def _powers(base: int, maximum: int) -> list[int]:
    """1 and more, up to `most`."""
    return sorted({min(base**power, maximum) for power in range(maximum.bit_length() + 1)})


def launch_steps(model: Decoder, cache: KVCache, sizes: StepSizes) -> None:
    """Have a model compute such steps, of tokens 0 that go nowhere, and draw from their logits in all ways."""
    for sequences, each, blocks, shares in sizes.steps():
        _launch(model, cache, sequences, each, blocks, shares=shares)


@torch.inference_mode()
def _launch(model: Decoder, cache: KVCache, sequences: int, each: int, blocks: int, *, shares: bool) -> None:
    device, tokens = model.kernels.device.torch_device, sequences * each
    starts, tables = np.arange(sequences + 1) * each, np.zeros((sequences, blocks), dtype=np.int32)
    # A step may have more tokens than a sequence has room for, so all of them stand at the first position.
    batch = PagedBatch.of(np.zeros(tokens, dtype=np.int64), starts, tables, device)
    zeros = torch.zeros(tokens, dtype=torch.int64, device=device)
    lengths = torch.full((sequences,), each, dtype=torch.int32, device=device)
    states = None
    if cache.recurrent_states is not None:
        states = StateBatch(zeros[:sequences] - 1, zeros - 1)
    batch = replace(batch, context_lens=lengths, slot_mapping=zeros - 1, recurrent_states=states, shares_prefix=shares)
    rows = torch.arange(tokens if each == 1 else min(tokens, MAX_LOGITS), device=device)
    logits = model.forward(zeros, batch, cache, rows)
    _, maxima = model.kernels.operations.most_likely(logits)
    ones = torch.ones(len(rows), dtype=torch.float64, device=device)
    how = SamplingTensors(ones.float(), torch.zeros_like(rows), ones, ones.float() * 0, ones * 0)
    model.kernels.operations.draw_tokens(logits, rows, maxima, how)
    model.kernels.operations.mask_logits(logits, {0: bytes(-(-logits.shape[1] // 32) * 4)})
