"""From the logits of one step to one token a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvarn.kernels.backend import Kernels, torch_kernels
from kvarn.kernels.sampling import SamplingTensors, unpack_mask
from kvarn.wire.messages import PositionLogprobs
from kvarn.worker.constraints import ConstrainedRow, apply_constraints
from kvarn.worker.errors import InvalidLogitsError, PlanError
from kvarn.worker.logprobs import position_logprobs
from kvarn.worker.philox import uniforms
from kvarn.worker.slots import NO_LOGPROBS, SlotTable


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens of one step."""

    token_ids: npt.NDArray[np.int64]
    """[R]"""
    logprobs: dict[int, PositionLogprobs]
    """By row, where asked for."""


def sample(
    logits: torch.Tensor,
    row_slots: npt.NDArray[np.int64],
    slots: SlotTable,
    kernels: Kernels | None = None,
    masks: Mapping[int, bytes | memoryview] | None = None,
    ahead: npt.NDArray[np.int64] | None = None,
) -> Sampled:
    """Draw the next token of each row.

    Order: (log-probabilities are the model's own) -> mask, allowed_token_ids, bad words, stop tokens before min_tokens,
    logit bias -> repetition, frequency and presence penalties -> temperature -> min-p -> top-k -> top-p -> draw.
    A row's token depends on its logits, its parameters, its history and (seed, position) alone.

    Args:
        logits: [R, vocab] float32, contiguous; changed in place.
        row_slots: [R] the slot of each row; distinct where a slot has a history that changes its logits.
        slots: Their parameters and history; not changed.
        kernels: What finds and draws tokens; the reference where none is given.
        masks: By row, where only some tokens may be drawn (see `kvarn.engine.plan.RowMasks`).
        ahead: [R] tokens between the last one that the slot knows and the one drawn; by default none.

    Raises:
        InvalidLogitsError: A row holds NaN or infinity, or nothing finite.
        PlanError: A mask allows no token.
    """
    kernels = kernels or torch_kernels()
    reports = slots.num_logprobs[row_slots]
    reported = np.flatnonzero(reports != NO_LOGPROBS)
    own_logits = logits[torch.from_numpy(reported)] if len(reported) else logits[:0]
    masks = masks or {}
    _check_masks(masks, row_slots)
    constrained = _constrained_rows(row_slots, slots, masks, logits.shape[1])
    if constrained or masks:
        check_finite(kernels.operations.most_likely(logits)[1], row_slots)
        kernels.operations.mask_logits(logits, masks)
        apply_constraints(logits, constrained)
    tokens, row_max = kernels.operations.most_likely(logits)
    check_finite(row_max, row_slots)
    drawn = np.flatnonzero(slots.temperature[row_slots] > 0)
    if len(drawn):
        rows = torch.from_numpy(drawn).to(logits.device)
        params = _draw_params(slots, row_slots[drawn], logits.device, None if ahead is None else ahead[drawn])
        tokens[rows] = kernels.operations.draw_tokens(logits, rows, row_max[rows], params)
    entries = position_logprobs(own_logits, tokens[torch.from_numpy(reported)], reports[reported].tolist())
    return Sampled(tokens.numpy(force=True), dict(zip(reported.tolist(), entries, strict=True)))


def _check_masks(masks: Mapping[int, bytes | memoryview], row_slots: npt.NDArray[np.int64]) -> None:
    for row, mask in masks.items():
        if not np.frombuffer(mask, dtype=np.uint8).any():
            raise PlanError(f"the mask of slot {row_slots[row]} allows no token: a mask must leave one at least")


def _constrained_rows(
    row_slots: npt.NDArray[np.int64], slots: SlotTable, masks: Mapping[int, bytes | memoryview], vocab_size: int
) -> list[ConstrainedRow]:
    if not slots.constraints:
        return []
    found = ((row, slots.constraints.get(slot)) for row, slot in enumerate(row_slots.tolist()))
    return [
        ConstrainedRow(
            row, constraints, constraints.choices(unpack_mask(masks[row], vocab_size) if row in masks else None)
        )
        for row, constraints in found
        if constraints is not None
    ]


def check_finite(row_max: torch.Tensor, row_slots: npt.NDArray[np.int64]) -> None:
    """Raise `InvalidLogitsError` for the first row whose largest logit is not finite: a NaN anywhere shows there."""
    finite = row_max.isfinite()
    if not bool(finite.all()):
        raise InvalidLogitsError(int(row_slots[int((~finite).nonzero()[0, 0])]))


def _draw_params(
    slots: SlotTable, row_slots: npt.NDArray[np.int64], device: torch.device, ahead: npt.NDArray[np.int64] | None
) -> SamplingTensors:
    positions = slots.num_output[row_slots]
    numbers = uniforms(slots.seed[row_slots], positions if ahead is None else positions + ahead)
    return SamplingTensors(
        temperature=torch.from_numpy(slots.temperature[row_slots]).to(device),
        top_k=torch.from_numpy(slots.top_k[row_slots]).to(device),
        top_p=torch.from_numpy(slots.top_p[row_slots]).to(device),
        min_p=torch.from_numpy(slots.min_p[row_slots]).to(device),
        uniforms=torch.from_numpy(numbers).to(device),
    )
