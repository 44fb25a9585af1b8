"""Log-probabilities of the model's own distribution: before masks, penalties and temperature."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvarn.wire.messages import PositionLogprobs, TokenLogprob


def position_logprobs(logits: torch.Tensor, chosen: torch.Tensor, num_top: Sequence[int]) -> list[PositionLogprobs]:
    """Log-probability and rank of one token, and of the most likely ones, at each of R positions.

    Ranks count from 1; of equally likely tokens the lowest id comes first. Sums are taken in float64.

    Args:
        logits: [R, vocab] float32, as the model gave them.
        chosen: [R] int64, the token that stands at each position.
        num_top: R numbers of most likely tokens to report; 0 for none.
    """
    if len(num_top) == 0:
        return []
    row_max = logits.amax(-1, keepdim=True)
    log_mass = (logits - row_max).to(torch.float64).exp().sum(-1).log() + row_max[:, 0]
    chosen_logits = logits.gather(1, chosen[:, None])
    ids = torch.arange(logits.shape[1], device=logits.device)
    ahead = (logits > chosen_logits) | ((logits == chosen_logits) & (ids < chosen[:, None]))
    ranks = (ahead.sum(-1) + 1).tolist()
    chosen_logprobs = (chosen_logits[:, 0] - log_mass).tolist()
    top_ids = _most_likely(logits, min(max(num_top), logits.shape[1]))
    top_logprobs = (logits.gather(1, top_ids) - log_mass[:, None]).tolist()
    return [
        PositionLogprobs(
            TokenLogprob(token, logprob, rank),
            [
                TokenLogprob(*entry)
                for entry in zip(row_ids[:count], row_logprobs[:count], range(1, count + 1), strict=False)
            ],
        )
        for token, logprob, rank, row_ids, row_logprobs, count in zip(
            chosen.tolist(), chosen_logprobs, ranks, top_ids.tolist(), top_logprobs, num_top, strict=True
        )
    ]


def _most_likely(logits: torch.Tensor, count: int) -> torch.Tensor:
    """[R, count] ids in the order (logit descending, id ascending).

    `topk` leaves the order of ties open, and which of them it takes: rows with a tie at the end are sorted in full.
    """
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
