"""From the logits of a step to its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kvarn.engine.plan import RowMasks
from kvarn.kernels.operations import Operations
from kvarn.kernels.sampling import SamplingTensors, unpack_mask
from kvarn.wire.messages import PositionLogprobs
from kvarn.worker.constraints import ConstrainedRow, apply_constraints
from kvarn.worker.errors import InvalidLogitsError, PlanError
from kvarn.worker.logprobs import position_logprobs
from kvarn.worker.philox import uniforms
from kvarn.worker.slots import NO_LOGPROBS, SAMPLING_COLUMNS, SlotTable
from kvarn.worker.step_batch import Ints, PromptSpan, StepBatch, filled

Mask = bytes | memoryview
"""See `kvarn.engine.plan.RowMasks`."""
_NEUTRAL = {name: column.neutral for name, column in SAMPLING_COLUMNS.items()} | {"uniforms": 0.0}
"""Fields of `SamplingTensors`, of rows that take the likeliest token."""


class Sampled(NamedTuple):
    """One token for each of R rows, and reports by row, where requested."""

    token_ids: Ints  # [R]
    logprobs: dict[int, PositionLogprobs]  # reports by row, where requested


class StepTokens(NamedTuple):
    """Tokens of a step, by place among the sampled rows, and reports, where requested."""

    tokens: list[list[int]]
    logprobs: dict[int, list[PositionLogprobs]]  # reports by place, where requested


class Sampler:
    """Draws the tokens of slots, and keeps them there."""

    def __init__(self, slots: SlotTable, operations: Operations) -> None:
        self._slots = slots
        self._operations = operations

    def draw(self, batch: StepBatch, logits: torch.Tensor, masks: Mapping[int, RowMasks]) -> StepTokens:
        """Draw one token for each sampled row, and one more as long as the drawn tokens are those proposed. Each
        position is drawn as if there were no proposals. `logits` [drawn rows, vocab] are changed in place."""
        slots = batch.sampled_slots
        if batch.drawn_together is None:
            rows = self.sample(logits, slots, _masks_of(masks, slots))
            self._slots.record(slots, rows.token_ids)
            return StepTokens(rows.token_ids[:, None].tolist(), {row: [entry] for row, entry in rows.logprobs.items()})
        places, ahead = batch.drawn_together
        rows = self.sample(logits[: len(places)], slots[places], _masks_of(masks, slots[places], ahead), ahead)
        token_ids = rows.token_ids.tolist()
        drawn = StepTokens(
            [[token] for token in token_ids[: len(slots)]],
            {row: [entry] for row, entry in rows.logprobs.items() if row < len(slots)},
        )
        for span in batch.proposal_spans:
            if span.first >= len(places):
                break  # those whose draws change the logits of the next ones
            candidates = token_ids[span.first : span.first + len(span.token_ids)]
            for proposal, (row, token) in zip(span.token_ids, enumerate(candidates, span.first), strict=True):
                if drawn.tokens[span.place][-1] != proposal:
                    break
                drawn.tokens[span.place].append(token)
                if row in rows.logprobs:
                    drawn.logprobs[span.place].append(rows.logprobs[row])
        for slot, tokens in zip(slots.tolist(), drawn.tokens, strict=True):
            self._slots.record_drawn(slot, tokens)
        self._draw_one_by_one(batch, logits, masks, drawn)
        return drawn

    def _draw_one_by_one(
        self, batch: StepBatch, logits: torch.Tensor, masks: Mapping[int, RowMasks], drawn: StepTokens
    ) -> None:
        """Go on with the rows whose logits depend on the tokens drawn before them, by penalties for example."""
        assert batch.drawn_together is not None, "there are proposals"
        slots, position = batch.sampled_slots, 0
        spans = [span for span in batch.proposal_spans if span.first >= len(batch.drawn_together[0])]
        while spans := [
            span for span in spans if span.token_ids[position : position + 1] == drawn.tokens[span.place][-1:]
        ]:
            rows = torch.tensor([span.first + position for span in spans], device=logits.device)
            position += 1
            own = slots[[span.place for span in spans]]
            sampled = self.sample(logits[rows], own, _masks_of(masks, own, np.full(len(own), position)))
            self._slots.record(own, sampled.token_ids)
            for row, (span, token) in enumerate(zip(spans, sampled.token_ids.tolist(), strict=True)):
                drawn.tokens[span.place].append(token)
                if row in sampled.logprobs:
                    drawn.logprobs[span.place].append(sampled.logprobs[row])

    def sample(
        self, logits: torch.Tensor, row_slots: Ints, masks: Mapping[int, Mask] | None = None, ahead: Ints | None = None
    ) -> Sampled:
        """Draw the next token of each row; the slots are not changed.

        Order: (log-probabilities are the model's own) -> mask, allowed_token_ids, bad words, stop tokens before
        min_tokens, logit bias -> repetition, frequency and presence penalties -> temperature -> min-p -> top-k -> top-p
        -> draw. A row's token depends on its logits, its parameters, its history and (seed, position) alone.

        `logits` [R, vocab] float32, contiguous, are changed in place; `row_slots` [R] are distinct where a slot has a
        history that changes its logits; `ahead` [R]: tokens between the last one that the slot knows and the one drawn.
        Raises InvalidLogitsError where a row holds NaN or nothing finite, PlanError where a mask allows no token.
        """
        slots, operations = self._slots, self._operations
        reports = slots.num_logprobs[row_slots]
        reported = np.flatnonzero(reports != NO_LOGPROBS)
        own_logits = logits[torch.from_numpy(reported)] if len(reported) else logits[:0]
        if masks:
            _check_masks(masks, row_slots)
        constrained = self._constrained_rows(row_slots, masks or {}, logits.shape[1]) if slots.constraints else []
        if constrained or masks:
            check_finite(operations.most_likely(logits)[1], row_slots)
            operations.mask_logits(logits, masks or {})
            apply_constraints(logits, constrained)
        tokens, row_max = operations.most_likely(logits)
        check_finite(row_max, row_slots)
        drawn = np.flatnonzero(slots.temperature[row_slots] > 0)
        if len(drawn):
            rows = torch.from_numpy(drawn).to(logits.device)
            columns = self._columns(row_slots[drawn], 0 if ahead is None else ahead[drawn])
            tensors = {name: torch.from_numpy(column).to(logits.device) for name, column in columns.items()}
            tokens[rows] = operations.draw_tokens(logits, rows, row_max[rows], SamplingTensors(**tensors))
        if not len(reported):
            return Sampled(tokens.numpy(force=True), {})
        entries = position_logprobs(own_logits, tokens[torch.from_numpy(reported)], reports[reported].tolist())
        return Sampled(tokens.numpy(force=True), dict(zip(reported.tolist(), entries, strict=True)))

    def prompt_logprobs(
        self, spans: Sequence[PromptSpan], pieces: Iterable[tuple[PromptSpan, list[int], torch.Tensor]]
    ) -> dict[int, list[PositionLogprobs]]:
        """Log-probabilities of prompt tokens, by the row of the plan. `pieces`: see `ModelRunner.prompt_logits`."""
        found: dict[int, list[PositionLogprobs]] = {span.row: [] for span in spans}
        for span, following, logits in pieces:
            check_finite(self._operations.most_likely(logits)[1], np.full(len(following), span.slot))
            chosen = torch.tensor(following, dtype=torch.int64, device=logits.device)
            found[span.row] += position_logprobs(logits, chosen, [span.num_top] * len(following))
        return found

    def columns_for_device(self, row_slots: Ints, size: int) -> list[npt.NDArray[Any]]:
        """Arrays for `draw_on_device`, filled up to `size` rows; empty where all rows take the likeliest token."""
        greedy, more = self._slots.temperature[row_slots] <= 0, size - len(row_slots)
        if greedy.all():
            return []
        columns = self._columns(row_slots, 0)
        columns["temperature"] = np.where(greedy, np.float32(_NEUTRAL["temperature"]), columns["temperature"])
        return [*(filled(column, more, _NEUTRAL[name]) for name, column in columns.items()), filled(greedy, more, True)]

    def draw_on_device(
        self, logits: torch.Tensor, columns: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and largest logits of R rows [R, vocab], in operations that a device can repeat."""
        tokens, row_max = self._operations.most_likely(logits)
        if columns and len(tokens):
            rows = torch.arange(len(tokens), device=tokens.device)
            parameters = SamplingTensors(**dict(zip(_NEUTRAL, columns[:-1], strict=True)))
            tokens = torch.where(columns[-1], tokens, self._operations.draw_tokens(logits, rows, row_max, parameters))
        return tokens, row_max

    def _columns(self, row_slots: Ints, ahead: Ints | int) -> dict[str, npt.NDArray[Any]]:
        slots = self._slots
        columns = {name: column[row_slots] for name, column in slots.sampling.items()}
        return columns | {"uniforms": uniforms(slots.seed[row_slots], slots.num_output[row_slots] + ahead)}

    def _constrained_rows(self, row_slots: Ints, masks: Mapping[int, Mask], vocab_size: int) -> list[ConstrainedRow]:
        found = ((row, self._slots.constraints.get(slot)) for row, slot in enumerate(row_slots.tolist()))
        return [
            ConstrainedRow(
                row, constraints, constraints.choices(unpack_mask(masks[row], vocab_size) if row in masks else None)
            )
            for row, constraints in found
            if constraints is not None
        ]


def check_finite(row_max: torch.Tensor, row_slots: Ints) -> None:
    """Raise `InvalidLogitsError` for the first row whose largest logit is not finite: a NaN anywhere shows there."""
    finite = row_max.isfinite()
    if not bool(finite.all()):
        raise InvalidLogitsError(int(row_slots[int((~finite).nonzero()[0, 0])]))


def _masks_of(masks: Mapping[int, RowMasks], row_slots: Ints, ahead: Ints | None = None) -> dict[int, Mask]:
    """Masks by row: of its slot, behind `ahead` proposals. One behind a proposal that is not allowed may be empty:
    the token drawn there is dropped."""
    found: dict[int, Mask] = {}
    if masks:
        positions = [0] * len(row_slots) if ahead is None else ahead.tolist()
        for row, (slot, position) in enumerate(zip(row_slots.tolist(), positions, strict=True)):
            if slot in masks:
                mask = masks[slot][position]
                if position == 0 or _allows_any(mask):
                    found[row] = mask
    return found


def _allows_any(mask: Mask) -> bool:
    return bool(np.frombuffer(mask, dtype=np.uint8).any())


def _check_masks(masks: Mapping[int, Mask], row_slots: Ints) -> None:
    for row, mask in masks.items():
        if not _allows_any(mask):
            raise PlanError(f"the mask of slot {row_slots[row]} allows no token: a mask must leave one at least")
