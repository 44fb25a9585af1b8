"""Tokens from logits by the Triton kernels, without waiting for the device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton

from kvarn.kernels.sampling import SamplingTensors, weight_bits
from kvarn.kernels.triton.jit import sampling

BLOCK = 4096
"""Tokens of a row that a program reads at a time."""
CAPACITY = 8192
"""Tokens of a row that top-k and top-p search in a list; where more may be kept, they search in the row."""


def most_likely(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Operations.most_likely`."""
    rows, vocab_size = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    maxima = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows:
        sampling.most_likely[(rows,)](
            logits, tokens, maxima, STRIDE=logits.stride(0), VOCAB=vocab_size, BLOCK=_block(vocab_size), num_warps=8
        )
    return tokens, maxima


def mask_logits(logits: torch.Tensor, rows: list[int], words: list[npt.NDArray[np.int32]]) -> None:
    """See `Operations.mask_logits`: a mask's words for each of some rows."""
    vocab_size = logits.shape[1]
    block, num_words = _block(vocab_size), -(-vocab_size // 32)
    sampling.mask_rows[(len(rows), triton.cdiv(vocab_size, block))](
        logits,
        torch.tensor(rows, dtype=torch.int64, device=logits.device),
        torch.from_numpy(np.stack([each[:num_words] for each in words])).to(logits.device),
        STRIDE=logits.stride(0),
        WORDS=num_words,
        VOCAB=vocab_size,
        BLOCK=block,
    )


def draw_tokens(
    logits: torch.Tensor, rows: torch.Tensor, row_max: torch.Tensor, params: SamplingTensors
) -> torch.Tensor:
    """See `Operations.draw_tokens`."""
    vocab_size = logits.shape[1]
    count, device = len(rows), logits.device
    tokens = torch.empty(count, dtype=torch.int64, device=device)
    if not count:
        return tokens
    block = _block(vocab_size)
    splits = triton.cdiv(vocab_size, block)
    sums = torch.empty(count, splits, sampling.LEVELS.value, dtype=torch.float64, device=device)
    counts = torch.empty_like(sums, dtype=torch.int32)
    listed = torch.empty(count, CAPACITY, dtype=torch.float32, device=device)
    ids = torch.empty_like(listed, dtype=torch.int32)
    lengths = torch.empty(count, dtype=torch.int32, device=device)
    weighed = (logits, rows, row_max, params.temperature)
    filters = (params.top_k, params.top_p, params.min_p)
    sizes = {"STRIDE": logits.stride(0), "VOCAB": vocab_size, "UNIT": 2.0 ** weight_bits(vocab_size), "BLOCK": block}
    lists = {"SPLITS": splits, "TABLE": int(triton.next_power_of_2(splits)), "CAPACITY": CAPACITY}
    sampling.survey[(count, splits)](*weighed, *filters, sums, counts, **sizes)
    sampling.gather[(count, splits)](*weighed, *filters, sums, counts, listed, ids, lengths, **sizes, **lists)
    found = (sums, listed, ids, lengths, tokens)
    sampling.draw[(count,)](*weighed, *filters, params.uniforms, *found, **sizes, **lists, num_warps=8)
    return tokens


def _block(vocab_size: int) -> int:
    return min(BLOCK, max(16, int(triton.next_power_of_2(vocab_size))))
