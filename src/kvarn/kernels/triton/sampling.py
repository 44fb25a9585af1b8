"""Tokens from logits by the Triton kernels, without waiting for the device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import triton

from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.sampling import SamplingTensors, weight_bits
from kvarn.kernels.triton.jit import sampling

BLOCK = 4096
"""Tokens of a row that a program reads at a time."""
CAPACITY = 8192
"""Tokens of a row that top-k and top-p search in a list; where more may be kept, they search in the row."""


def most_likely(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Kernels.most_likely`."""
    rows, vocab_size = _shape_of(logits)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    maxima = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows:
        sampling.most_likely[(rows,)](
            logits, tokens, maxima, STRIDE=logits.stride(0), VOCAB=vocab_size, BLOCK=_block(vocab_size), num_warps=8
        )
    return tokens, maxima


def mask_logits(logits: torch.Tensor, masks: Mapping[int, bytes | memoryview]) -> None:
    """See `Kernels.mask_logits`. Raises KernelInputError where a mask does not fit."""
    rows, vocab_size = _shape_of(logits)
    if not masks:
        return
    num_words = -(-vocab_size // 32)
    found = [np.frombuffer(mask, dtype=np.int32) for mask in masks.values()]
    if min(masks) < 0 or max(masks) >= rows or min(map(len, found)) < num_words:
        raise KernelInputError(f"masks of rows {sorted(masks)} do not fit logits [{rows}, {vocab_size}]")
    words = torch.from_numpy(np.stack([each[:num_words] for each in found])).to(logits.device)
    block = _block(vocab_size)
    sampling.mask_rows[(len(masks), triton.cdiv(vocab_size, block))](
        logits,
        torch.tensor(list(masks), dtype=torch.int64, device=logits.device),
        words,
        STRIDE=logits.stride(0),
        WORDS=num_words,
        VOCAB=vocab_size,
        BLOCK=block,
    )


def draw_tokens(
    logits: torch.Tensor, rows: torch.Tensor, row_max: torch.Tensor, params: SamplingTensors
) -> torch.Tensor:
    """See `Kernels.draw_tokens`."""
    _, vocab_size = _shape_of(logits)
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


def _shape_of(logits: torch.Tensor) -> tuple[int, int]:
    if logits.ndim != 2 or logits.dtype != torch.float32 or logits.stride(1) != 1 or logits.shape[1] == 0:
        raise KernelInputError(
            f"logits must be float32 [rows, vocabulary] with tokens side by side, not {logits.dtype} "
            f"{list(logits.shape)} with strides {logits.stride()}"
        )
    rows, vocab_size = logits.shape
    return rows, vocab_size
