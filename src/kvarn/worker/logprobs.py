"""Log-probabilities of the model's own distribution: before masks, penalties and temperature."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kvarn.wire.messages import PositionLogprobs, TokenLogprob

_POSITIONS_AT_ONCE = 64
"""Positions computed together: their masks and copies take tens of megabytes for a large vocabulary."""


def position_logprobs(logits: torch.Tensor, chosen: torch.Tensor, num_top: Sequence[int]) -> list[PositionLogprobs]:
    """Log-probability and rank of one token, and of the most likely ones, at each of R positions.

    Ranks count from 1; of equally likely tokens the lowest id comes first. Sums are taken in float64, over one position
    at a time, so that an entry does not depend on the others.

    Args:
        logits: [R, vocab] float32, as the model gave them.
        chosen: [R] int64, the token that stands at each position.
        num_top: Numbers of most likely tokens to report.
    """
    entries: list[PositionLogprobs] = []
    for first in range(0, len(num_top), _POSITIONS_AT_ONCE):
        piece = slice(first, first + _POSITIONS_AT_ONCE)
        entries += _entries(logits[piece], chosen[piece], num_top[piece])
    return entries


def _entries(logits: torch.Tensor, chosen: torch.Tensor, num_top: Sequence[int]) -> list[PositionLogprobs]:
    log_mass = _log_mass(logits)
    chosen_logits = logits.gather(1, chosen[:, None])
    chosen_logprobs = (chosen_logits[:, 0] - log_mass).tolist()
    top_ids = _most_likely(logits, min(max(num_top), logits.shape[1]))
    top_logprobs = (logits.gather(1, top_ids) - log_mass[:, None]).tolist()
    columns = (chosen.tolist(), chosen_logprobs, _ranks(logits, chosen, chosen_logits), top_ids.tolist(), top_logprobs)
    return [
        PositionLogprobs.of(
            TokenLogprob(token, logprob, rank),
            [
                TokenLogprob(*entry, place)
                for place, entry in enumerate(zip(ids[:count], values[:count], strict=True), 1)
            ],
        )
        for token, logprob, rank, ids, values, count in zip(*columns, num_top, strict=True)
    ]


def _log_mass(logits: torch.Tensor) -> torch.Tensor:
    row_max = logits.amax(-1)
    sums = [(row - top).exp_().sum(dtype=torch.float64) for row, top in zip(logits, row_max, strict=True)]
    # One by one: a vectorised logarithm may round by a row's place among the others.
    logarithms = [math.log(mass) for mass in torch.stack(sums).tolist()]
    return torch.tensor(logarithms, dtype=torch.float64, device=logits.device) + row_max


def _ranks(logits: torch.Tensor, chosen: torch.Tensor, chosen_logits: torch.Tensor) -> list[int]:
    """Place of each chosen token in the order (logit descending, id ascending)."""
    ranks = (logits > chosen_logits).sum(-1).add_(1).tolist()
    equal = (logits == chosen_logits).sum(-1)
    for row in (equal > 1).nonzero()[:, 0].tolist():
        ranks[row] += int((logits[row, : chosen[row]] == chosen_logits[row]).sum())
    return [int(rank) for rank in ranks]


def _most_likely(logits: torch.Tensor, count: int) -> torch.Tensor:
    """[R, count] ids in the order (logit descending, id ascending). `topk` leaves ties open: rows with a tie at the
    end are sorted in full."""
    if count == 0:
        return torch.empty(len(logits), 0, dtype=torch.int64, device=logits.device)
    ids = logits.topk(count, dim=1).indices.sort(dim=1).values
    values = logits.gather(1, ids)
    order = values.sort(dim=1, descending=True, stable=True).indices
    ids = ids.gather(1, order)
    tied = (logits >= values.amin(-1, keepdim=True)).sum(-1) > count
    for row in tied.nonzero()[:, 0].tolist():
        ids[row] = logits[row].sort(descending=True, stable=True).indices[:count]
    return ids
