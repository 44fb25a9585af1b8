"""The reference for `kvarn.kernels.sampling`, and of the most likely token: in plain torch, on any device it has."""

from __future__ import annotations

import torch

from kvarn.kernels.sampling import SamplingTensors, weight_bits

_TILE_BYTES = 4 * 1024 * 1024
"""Weights computed at a time: the passes over a tile find it in the processor's cache."""

_CHUNK = 128
"""Tokens of one chunk in the two-level search and in the search for candidates."""

_FEW_CANDIDATES = 64
_MANY_CANDIDATES = 1024
"""Most likely tokens looked at for a top-p row, before all of them are sorted."""

_LARGE_K = 512
"""A larger top-k does not make its neighbours look at so many candidates: its own row tries again."""

_ID_SPAN = 2**20
"""More than any token id."""


def most_likely(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Operations.most_likely`.

    On a CPU by numpy, whose argmax is vectorised: torch's takes thirty times as long on a large vocabulary.
    """
    tokens = torch.from_numpy(logits.numpy().argmax(-1)) if logits.device.type == "cpu" else logits.argmax(-1)
    return tokens, logits.gather(1, tokens[:, None])[:, 0]


def draw_tokens(
    logits: torch.Tensor, rows: torch.Tensor, row_max: torch.Tensor, params: SamplingTensors
) -> torch.Tensor:
    vocab_size = logits.shape[1]
    padded_size = -(-vocab_size // _CHUNK) * _CHUNK
    rows_per_tile = max(1, min(len(rows), _TILE_BYTES // (4 * padded_size)))
    tile = torch.zeros(rows_per_tile, padded_size, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    for selected, draw in ((~params.filtered, _draw_by_id), (params.filtered, _draw_filtered)):
        for part in torch.split(selected.nonzero()[:, 0], rows_per_tile):
            if len(part) == 0:
                break
            weights, own = tile[: len(part)], params.take(part)
            _fill_weights(weights[:, :vocab_size], logits[rows[part]], row_max[part], own)
            tokens[part] = draw(weights, own)
    return tokens


def _fill_weights(out: torch.Tensor, logits: torch.Tensor, row_max: torch.Tensor, params: SamplingTensors) -> None:
    """Write the integer weights of a tile into `out` [r, vocab] float32, those below min-p as 0."""
    scale = 2.0 ** weight_bits(logits.shape[1])
    torch.sub(logits, row_max[:, None], out=out)
    out.div_(params.temperature[:, None]).exp_().mul_(scale).round_()
    if bool((params.min_p > 0).any()):
        out.masked_fill_(out < (params.min_p * scale)[:, None], 0.0)


def _draw_by_id(weights: torch.Tensor, params: SamplingTensors) -> torch.Tensor:
    """Inverse CDF in the order of token ids, in two levels: find the chunk by its sum, then the token within it."""
    num_rows = len(weights)
    chunks = weights.view(num_rows, -1, _CHUNK)
    ends = chunks.sum(-1, dtype=torch.float64).cumsum(-1)
    targets = (params.uniforms * ends[:, -1])[:, None]
    chunk = torch.searchsorted(ends, targets, right=True)
    row = torch.arange(num_rows, device=weights.device)[:, None]
    inside = chunks[row, chunk][:, 0].to(torch.float64).cumsum(-1)
    before = ends.gather(1, chunk) - inside[:, -1:]
    offset = torch.searchsorted(before + inside, targets, right=True)
    return (chunk * _CHUNK + offset)[:, 0]


def _draw_filtered(weights: torch.Tensor, params: SamplingTensors) -> torch.Tensor:
    """Inverse CDF over what top-k and top-p keep, in the order (weight descending, token id ascending).

    Few candidates first; rows that may keep more than those try again with more, at last with the whole vocabulary.
    """
    num_rows, padded_size = weights.shape
    small_k = params.top_k[params.top_k <= _LARGE_K]
    largest_k = int(small_k.max()) if len(small_k) else 0
    totals = weights.sum(-1, dtype=torch.float64)
    tokens = torch.empty(num_rows, dtype=torch.int64, device=weights.device)
    open_rows = torch.arange(num_rows, device=weights.device)
    for count in (max(_FEW_CANDIDATES, largest_k + 1), _MANY_CANDIDATES, padded_size):
        part = weights[open_rows] if len(open_rows) < num_rows else weights
        ids = _candidates(part, min(count, padded_size))
        drawn, resolved = _draw_from(ids, part.gather(1, ids), totals[open_rows], params.take(open_rows))
        tokens[open_rows] = drawn
        open_rows = open_rows[~resolved]
        if len(open_rows) == 0:
            break
    return tokens


def _candidates(weights: torch.Tensor, count: int) -> torch.Tensor:
    """[r, count] ids of the `count` heaviest tokens of each row, in no order; among the lightest of them ties are open.

    In two stages, since a top-k over a whole vocabulary is slow: each of the `count` heaviest tokens lies in one of the
    `count` chunks with the largest maxima.
    """
    num_rows, padded_size = weights.shape
    if count == padded_size:
        return torch.arange(count, device=weights.device).expand(num_rows, -1)
    num_chunks = padded_size // _CHUNK
    if num_chunks < 2 * count:
        return weights.topk(count, dim=1, sorted=False).indices
    chunks = weights.view(num_rows, num_chunks, _CHUNK)
    best_chunks = chunks.amax(-1).topk(count, dim=1, sorted=False).indices
    row = torch.arange(num_rows, device=weights.device)[:, None]
    best = chunks[row, best_chunks].view(num_rows, -1).topk(count, dim=1, sorted=False).indices
    return best_chunks.gather(1, best // _CHUNK) * _CHUNK + best % _CHUNK


def _draw_from(
    ids: torch.Tensor, weights: torch.Tensor, totals: torch.Tensor, params: SamplingTensors
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from candidates [r, K] in any order.

    Returns:
        Tokens [r] int64, and [r] bool: whether the candidates held all that the row keeps. They do when the lightest
        kept token is heavier than the lightest candidate, for then no token outside can tie with it.
    """
    keys = (weights.to(torch.int64) * _ID_SPAN + (_ID_SPAN - 1 - ids)).sort(dim=1, descending=True).values
    ids = _ID_SPAN - 1 - keys % _ID_SPAN
    weights = (keys // _ID_SPAN).to(torch.float64)
    count = ids.shape[1]
    limits = torch.where(params.top_k > 0, params.top_k, _ID_SPAN)[:, None]
    heaviest = torch.where(torch.arange(count, device=ids.device) < limits, weights, 0.0)
    ends = heaviest.cumsum(-1)
    mass = torch.where(params.top_k > 0, ends[:, -1], totals)[:, None]
    kept = torch.where(ends - heaviest < params.top_p[:, None] * mass, heaviest, 0.0)
    ends = kept.cumsum(-1)
    picks = torch.searchsorted(ends, params.uniforms[:, None] * ends[:, -1:], right=True)
    lightest_kept = torch.where(kept > 0, kept, torch.inf).amin(-1)
    lightest = weights[:, -1]
    resolved = (lightest == 0) | ((lightest_kept > lightest) & (params.top_k <= count))
    return ids.gather(1, picks)[:, 0], resolved
