"""Checks of what operations are called with, the same for all backends. Each raises KernelInputError."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from kvarn.kernels.batch import HeadShape, PagedBatch, StateBatch
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.sampling import SamplingTensors


def check_rows(tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """A tensor has this shape and type, and contiguous rows."""
    if tensor.dtype != dtype or tensor.shape != shape or (shape[-1] > 1 and tensor.stride(-1) != 1):
        raise KernelInputError(
            f"rows must be {dtype} {list(shape)}, numbers side by side, not {tensor.dtype} {list(tensor.shape)} with "
            f"strides {tensor.stride()}"
        )


def check_logits(logits: torch.Tensor) -> tuple[int, int]:
    """Rows and vocabulary of logits."""
    if logits.ndim != 2 or logits.dtype != torch.float32 or logits.stride(1) != 1 or logits.shape[1] == 0:
        raise KernelInputError(
            f"logits must be float32 [rows, vocabulary] with tokens side by side, not {logits.dtype} "
            f"{list(logits.shape)} with strides {logits.stride()}"
        )
    rows, vocab_size = logits.shape
    return rows, vocab_size


def mask_words(logits: torch.Tensor, masks: Mapping[int, bytes | memoryview]) -> list[npt.NDArray[np.int32]]:
    """The words of each mask, at least as many as the vocabulary takes."""
    rows, vocab_size = check_logits(logits)
    found = [np.frombuffer(mask, dtype=np.int32) for mask in masks.values()]
    if masks and (min(masks) < 0 or max(masks) >= rows or min(map(len, found)) < -(-vocab_size // 32)):
        raise KernelInputError(f"masks of rows {sorted(masks)} do not fit logits [{rows}, {vocab_size}]")
    return found


def check_draw(rows: torch.Tensor, row_max: torch.Tensor, params: SamplingTensors) -> None:
    """Each row to draw for has a maximum and parameters."""
    columns = (
        (rows, torch.int64),
        (row_max, torch.float32),
        (params.temperature, torch.float32),
        (params.top_k, torch.int64),
        (params.top_p, torch.float64),
        (params.min_p, torch.float32),
        (params.uniforms, torch.float64),
    )
    for column, dtype in columns:
        if column.dtype != dtype or column.shape != rows.shape or column.ndim != 1:
            raise KernelInputError(f"a draw needs {dtype} {list(rows.shape)}, not {column.dtype} {list(column.shape)}")


def check_heads(heads: HeadShape, window: int | None) -> None:
    """Query heads share key/value heads evenly, and a query sees a token."""
    if heads.query % heads.kv:
        raise KernelInputError(f"{heads.query} query heads cannot share {heads.kv} key/value heads evenly")
    if window is not None and window < 1:
        raise KernelInputError(f"a window of {window} tokens shows a query not even itself")


def check_step(batch: PagedBatch) -> None:
    """The tensors of a step are those of its sequences."""
    (sequences,) = batch.context_lens.shape
    if batch.query_starts.shape != (sequences + 1,) or len(batch.block_tables) != sequences:
        raise KernelInputError(f"query starts or block tables are not those of {sequences} sequences")
    if batch.shares_prefix and len(batch.slot_mapping) != sequences:
        raise KernelInputError("a prefix is shared where each sequence has one query")


def check_states(batch: PagedBatch) -> StateBatch:
    """The states of a step's sequences."""
    states, sequences = batch.recurrent_states, len(batch.query_starts) - 1
    if states is None:
        raise KernelInputError("the model has recurrent states, but the step does not say which ones")
    if states.places.shape != (sequences,):
        raise KernelInputError(f"{len(states.places)} places are not those of {sequences} sequences")
    if states.places.dtype != torch.int64 or states.saves.dtype != torch.int64:
        raise KernelInputError(f"places and saves must be int64, not {states.places.dtype} and {states.saves.dtype}")
    return states


def check_latent_rows(
    queries: torch.Tensor, cache: torch.Tensor, shape: tuple[int, int, int], value_size: int, largest: int
) -> None:
    """Queries [T, H, size] lie side by side, and a cache holds rows of `size` numbers with values of `value_size`."""
    size = shape[2]
    if queries.shape != shape or not queries.is_contiguous():
        raise KernelInputError(f"queries must be {shape} side by side, not {tuple(queries.shape)}")
    if cache.shape[-1] != size or not 0 < value_size <= min(size, largest):
        raise KernelInputError(
            f"a cache {tuple(cache.shape)} does not hold rows of {size} numbers with values of {value_size}, "
            f"{largest} at most"
        )
