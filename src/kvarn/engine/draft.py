"""A step in the making: the rows so far, and what is left of the token budget and of the time."""

from __future__ import annotations

from kvarn.config.schema import EngineConfig
from kvarn.engine.plan import Admission, BlockCopy, Row, StepPlan
from kvarn.engine.request import Sequence
from kvarn.engine.step_time import StepShape, StepTimeModel


class StepDraft:
    """The budget object of one step: it hands out shares until nothing is left, then becomes a `StepPlan`.

    Most rows are a decode's single token: they are an entry of `rows`, and what only others have stands beside it.
    """

    def __init__(self, config: EngineConfig, step_time: StepTimeModel) -> None:
        self.tokens_left = config.token_budget
        self.shape = StepShape()
        self.rows: dict[Sequence, int] = {}
        """Tokens of each sequence to be computed. A row can still be taken out of the step."""
        self.charged: dict[Sequence, int] = {}
        """Prompt tokens charged to the tenant for a row, where there are any."""
        self.copies: dict[Sequence, list[BlockCopy]] = {}
        """Blocks to be copied for a row, where there are any."""
        self.admitted: list[Sequence] = []
        self.preempted = False
        """Whether memory ran out: then nobody new starts in this step."""
        self._target_s = config.tpot_target_ms / 1000
        self._max_stretch = config.max_prefill_stretch
        self._min_prefill_chunk = config.min_prefill_chunk
        self._step_time = step_time

    def share(self, start: int, wanted: int) -> int:
        """Tokens that a sequence with `wanted` tokens to compute from `start` on gets in this step.

        A single token is a decode and needs only budget. A longer part is cut so that the step keeps the TPOT target
        of the decodes beside it; where they miss it even alone, so that they are stretched by no more than the
        configured factor. The step always carries `min_prefill_chunk` prompt tokens.
        """
        granted = min(wanted, self.tokens_left)
        if wanted == 1 or not self.shape.decode_rows:
            return granted
        in_time = self._step_time.prefill_room(self.shape, start, self._longest_s())
        return min(granted, max(in_time, self._min_prefill_chunk - self.shape.prefill_tokens))

    def _longest_s(self) -> float:
        """How long the step may take, in seconds."""
        if not self._step_time.is_settled:
            return self._target_s
        decodes = StepShape(decode_rows=self.shape.decode_rows, decode_context=self.shape.decode_context)
        return max(self._target_s, self._max_stretch * self._step_time.predict(decodes))

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        """Put a row into the step."""
        self.rows[sequence] = num_tokens
        self.tokens_left -= num_tokens
        self.shape.add(sequence.num_computed, num_tokens)

    def remove(self, sequence: Sequence) -> int:
        """Take a sequence's row, if it has one, out again, its copies with it; returns the tokens charged for it."""
        num_tokens = self.rows.pop(sequence, 0)
        if num_tokens:
            self.tokens_left += num_tokens
            self.shape.add(sequence.num_computed, num_tokens, sign=-1)
        self.copies.pop(sequence, None)
        return self.charged.pop(sequence, 0)

    def plan(self, step: int, releases: list[int]) -> StepPlan:
        """The finished plan. Block-table changes pass from the sequences to it.

        A shared block is copied by the sibling forked from it, in the step in which that starts. So no copy's source
        is another's target, and an executor may carry the copies out in any order.
        """
        return StepPlan(
            step=step,
            releases=releases,
            admissions=[_admission(sequence) for sequence in self.admitted],
            copies=[copy for copies in self.copies.values() for copy in copies],
            rows=[_row(sequence, num_tokens) for sequence, num_tokens in self.rows.items()],
        )


def _admission(sequence: Sequence) -> Admission:
    request, slot = sequence.request, sequence.slot
    assert slot is not None, "an admitted sequence has a slot"
    outputs = sequence.tokens[sequence.num_prompt :]
    return Admission(slot, request.sampling, sequence.seed, request.prompt, outputs, request.scope.adapter)


def _row(sequence: Sequence, num_tokens: int) -> Row:
    request, slot, start, tokens = sequence.request, sequence.slot, sequence.num_computed, sequence.tokens
    assert slot is not None, "a row belongs to a running sequence"
    end = start + num_tokens
    updates = sequence.pending_updates
    if updates:
        sequence.pending_updates = []
    return Row(
        slot,
        start,
        tokens[start:end],
        list(updates),
        end == len(tokens) and request.sampling.max_tokens > 0,
        request.wants_prompt_logprobs and sequence.index == 0,
    )
