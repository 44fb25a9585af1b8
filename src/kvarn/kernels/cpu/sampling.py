"""Tokens from logits by the compiled kernels; `kvarn.kernels.sampling` says what a draw is."""

from __future__ import annotations

import torch

from kvarn.kernels.cpu._native import Backend
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.sampling import SamplingTensors, weight_bits


def most_likely(native: Backend, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Kernels.most_likely`."""
    rows, vocab_size = _shape_of(logits)
    tokens = torch.empty(rows, dtype=torch.int64)
    values = torch.empty(rows, dtype=torch.float32)
    native.most_likely(logits.data_ptr(), rows, vocab_size, logits.stride(0), tokens.data_ptr(), values.data_ptr())
    return tokens, values


def draw_tokens(
    native: Backend, logits: torch.Tensor, rows: torch.Tensor, row_max: torch.Tensor, params: SamplingTensors
) -> torch.Tensor:
    """See `Kernels.draw_tokens`.

    Raises KernelInputError where `rows` are not rows of `logits`, or one of them holds NaN or another maximum than
    `row_max` says, so that nothing can be drawn from it.
    """
    num_rows, vocab_size = _shape_of(logits)
    columns = (
        (rows, torch.int64),
        (row_max, torch.float32),
        (params.temperature, torch.float32),
        (params.top_k, torch.int64),
        (params.top_p, torch.float64),
        (params.min_p, torch.float32),
        (params.uniforms, torch.float64),
    )
    # Kept until the call is over: a column that is not contiguous is copied.
    held = [_column(column, dtype, len(rows)) for column, dtype in columns]
    of_rows, maxima, temperature, top_k, top_p, min_p, uniforms = (column.data_ptr() for column in held)
    if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= num_rows):
        raise KernelInputError(f"rows to draw for must lie between 0 and {num_rows - 1}")
    tokens = torch.empty(len(rows), dtype=torch.int64)
    try:
        native.draw_tokens(
            logits.data_ptr(),
            vocab_size,
            logits.stride(0),
            weight_bits(vocab_size),
            of_rows,
            len(rows),
            maxima,
            temperature,
            top_k,
            top_p,
            min_p,
            uniforms,
            tokens.data_ptr(),
        )
    except ValueError as error:
        raise KernelInputError(str(error)) from error
    return tokens


def token_weights(
    native: Backend, logits: torch.Tensor, row_max: float, temperature: float, min_p: float
) -> torch.Tensor:
    """[vocab] float32: the integer weights that a draw from the row logits [vocab] uses. For tests and measurements."""
    _, vocab_size = _shape_of(logits[None])
    weights = torch.empty(vocab_size, dtype=torch.float32)
    native.token_weights(
        logits.data_ptr(), vocab_size, weight_bits(vocab_size), row_max, temperature, min_p, weights.data_ptr()
    )
    return weights


def _shape_of(logits: torch.Tensor) -> tuple[int, int]:
    if logits.ndim != 2 or logits.dtype != torch.float32 or logits.stride(1) != 1 or logits.shape[1] == 0:
        raise KernelInputError(
            f"logits must be float32 [rows, vocabulary] with tokens side by side, not {logits.dtype} "
            f"{list(logits.shape)} with strides {logits.stride()}"
        )
    rows, vocab_size = logits.shape
    return rows, vocab_size


def _column(column: torch.Tensor, dtype: torch.dtype, rows: int) -> torch.Tensor:
    if column.dtype != dtype or column.shape != (rows,):
        raise KernelInputError(f"a draw needs {dtype} [{rows}], not {column.dtype} {list(column.shape)}")
    return column.contiguous()
