"""Steps of all sizes for which kernels differ: what is compiled before it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kvarn.kernels.batch import KVCache, PagedBatch, StateBatch
from kvarn.kernels.sampling import SamplingTensors
from kvarn.models import Decoder
from kvarn.shapes import BLOCK_SIZE

_FIRST = BLOCK_SIZE
"""Tokens of the prompt that an engine computes first, to warm up."""
MOST_LOGITS = 256
"""Rows of logits that are computed together at most, but where more sequences draw."""


@dataclass(frozen=True, slots=True)
class StepSizes:
    """What an engine's steps have at most."""

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


def _powers(base: int, most: int) -> list[int]:
    """1 and more, up to `most`."""
    return sorted({min(base**power, most) for power in range(most.bit_length() + 1)})


def launch_steps(model: Decoder, cache: KVCache, sizes: StepSizes) -> None:
    """Have a model compute such steps, of tokens 0 that go nowhere, and draw from their logits in all ways."""
    for sequences, each, blocks, shares in sizes.steps():
        _launch(model, cache, sequences, each, blocks, shares=shares)


@torch.inference_mode()
def _launch(model: Decoder, cache: KVCache, sequences: int, each: int, blocks: int, *, shares: bool) -> None:
    device, tokens = model.kernels.device.torch_device, sequences * each
    zeros = torch.zeros(tokens, dtype=torch.int64, device=device)
    starts = torch.arange(sequences + 1, dtype=torch.int32, device=device) * each
    states = None
    if cache.recurrent_states is not None:
        states = StateBatch(zeros[:sequences] - 1, zeros - 1)
    batch = PagedBatch(
        positions=zeros,
        query_starts=starts,
        context_lens=torch.full((sequences,), each, dtype=torch.int32, device=device),
        block_tables=torch.zeros(sequences, blocks, dtype=torch.int32, device=device),
        slot_mapping=zeros - 1,
        recurrent_states=states,
        shares_prefix=shares,
    )
    rows = torch.arange(tokens if each == 1 else min(tokens, MOST_LOGITS), device=device)
    logits = model.forward(zeros, batch, cache, rows)
    _, maxima = model.kernels.operations.most_likely(logits)
    ones = torch.ones(len(rows), dtype=torch.float64, device=device)
    how = SamplingTensors(ones.float(), torch.zeros_like(rows), ones, ones.float() * 0, ones * 0)
    model.kernels.operations.draw_tokens(logits, rows, maxima, how)
    model.kernels.operations.mask_logits(logits, {0: bytes(-(-logits.shape[1] // 32) * 4)})
