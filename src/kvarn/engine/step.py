"""One step: its plan while it is built (`StepBuilder`), the slots it names, one row of its result (`apply_result`)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from kvarn.config.schema import BLOCK_SIZE, EngineConfig
from kvarn.costs.prefill_speed import longest_step_s
from kvarn.costs.step_times import StepShape
from kvarn.engine.errors import IntegrityError
from kvarn.engine.plan import (
    LAST_SAMPLED,
    NO_SNAPSHOT,
    AdapterLoad,
    BlockCopy,
    BlockTransfer,
    BlockUpdate,
    NewSequence,
    Row,
    RowMasks,
    RowResult,
    StateSave,
    StepPlan,
)
from kvarn.engine.request import Request, Sequence
from kvarn.engine.step_time import StepTimeModel
from kvarn.wire.messages import FinishReason, PositionLogprobs, TokenDelta


class SlotAllocator:
    """Slots by which the executor knows running sequences: 0 to `num_slots - 1`.

    The lowest free one goes first, so that the executor's batch stays dense.
    """

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots))
        self._released: list[int] = []
        self._num_slots = num_slots

    @property
    def num_free(self) -> int:
        """Slots that can be taken now."""
        return len(self._free)

    def take(self) -> int:
        """The lowest free slot."""
        return heapq.heappop(self._free)

    def release(self, slot: int) -> None:
        """Free a slot; the next plan tells the executor."""
        heapq.heappush(self._free, slot)
        self._released.append(slot)

    def drain_released(self) -> list[int]:
        """Slots released since the last call, in order."""
        released, self._released = self._released, []
        return released

    def check_integrity(self, taken: list[int]) -> None:
        """Compare with the slots that running sequences say they have. Raises `IntegrityError`."""
        if sorted(self._free + taken) != list(range(self._num_slots)):
            raise IntegrityError(f"slots {sorted(taken)} are taken and {sorted(self._free)} are free")


class StepBuilder:
    """The budget object of one step: it hands out shares until nothing is left, then becomes a `StepPlan`.

    Most rows are a decode's single token: they are an entry of `rows`, and what only others have stands beside it.
    """

    def __init__(
        self, config: EngineConfig, step_time: StepTimeModel, limit_s: Callable[[], float | None] = lambda: None
    ) -> None:
        """`limit_s`: how long the step may take for the latency targets of those that run; None: as configured."""
        self.tokens_left = config.token_budget
        self.shape = StepShape()
        self.rows: dict[Sequence, int] = {}
        """Tokens of each sequence to be computed. A row can still be taken out of the step."""
        self.charged: dict[Sequence, int] = {}
        """Prompt tokens charged to the tenant for a row, where there are any."""
        self.copies: dict[Sequence, list[BlockCopy]] = {}
        """Blocks to be copied for a row, where there are any."""
        self.proposals: dict[Sequence, list[int]] = {}
        """Tokens to verify at the end of a row, where there are any; they count as the row's."""
        self.forced: set[Sequence] = set()
        """Sequences whose proposals are what the mask forces: there is nothing to verify."""
        self.saves: dict[Sequence, list[StateSave]] = {}
        """Copies of recurrent states that are kept of a row, where there are any."""
        self.admitted: list[Sequence] = []
        self.preempted = False
        """Whether memory ran out: then nobody new starts in this step."""
        self._masks: dict[int, RowMasks] = {}
        self._config = config
        self._step_time = step_time
        self._limit_s = limit_s

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
        return min(granted, max(in_time, self._config.min_prefill_chunk - self.shape.prefill_tokens))

    def _longest_s(self) -> float:
        """How long the step may take, in seconds."""
        if not self._step_time.is_settled:
            return self._config.tpot_target_ms / 1000
        decodes_s = self._step_time.times.decode_s(self.shape.decode_rows, self.shape.decode_context)
        return longest_step_s(self._config, decodes_s, self._limit_s())

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        """Put a row into the step."""
        self.rows[sequence] = num_tokens
        self.tokens_left -= num_tokens
        self.shape.add(sequence.num_computed_tokens, num_tokens)

    def remove(self, sequence: Sequence) -> int:
        """Take a sequence's row, if it has one, out again, its copies with it; returns the tokens charged for it."""
        num_tokens = self.rows.pop(sequence, 0)
        if num_tokens:
            self.tokens_left += num_tokens
            self.shape.add(sequence.num_computed_tokens, num_tokens, sign=-1)
        copies = self.copies.pop(sequence, None)
        if copies:  # what was to be copied is not there
            sequence.num_computed_tokens = min(
                sequence.num_computed_tokens, BLOCK_SIZE * sequence.blocks.index(copies[0].target)
            )
        return self.charged.pop(sequence, 0)

    def propose(self, sequence: Sequence, proposals: list[int]) -> None:
        """Append tokens to verify to a sequence's row. No row is taken out of the step afterwards."""
        num_tokens = self.rows[sequence]
        self.shape.add_proposals(sequence.num_computed_tokens + num_tokens, len(proposals))
        self.rows[sequence] = num_tokens + len(proposals)
        self.tokens_left -= len(proposals)
        self.proposals[sequence] = proposals

    def force(self, sequence: Sequence, tokens: list[int]) -> None:
        """Append tokens that are certain to be drawn next. As with `propose`, the row stays."""
        self.propose(sequence, tokens)
        self.forced.add(sequence)

    def build(
        self,
        number: int,
        releases: list[int],
        kv_stores: list[BlockTransfer],
        kv_loads: list[BlockTransfer],
        adapter_loads: list[AdapterLoad],
        adapter_drops: list[str],
    ) -> SubmittedStep:
        """The finished step. Its rows count as computed from now on, and block-table changes pass to the plan.

        A shared block is copied by the sibling forked from it, in the step in which that starts. So no copy's source
        is another's target, and an executor may carry the copies out in any order.
        """
        new_sequences = [_new_sequence(sequence) for sequence in self.admitted]
        copies = [copy for copies in self.copies.values() for copy in copies]
        rows = [self._row(sequence, num_tokens) for sequence, num_tokens in self.rows.items()]
        plan = StepPlan(
            number,
            releases,
            new_sequences,
            copies,
            rows,
            kv_stores,
            kv_loads,
            adapter_loads,
            adapter_drops,
            self._masks,
        )
        return SubmittedStep(plan, self.rows, self.shape)

    def _row(self, sequence: Sequence, num_tokens: int) -> Row:
        slot, start, tokens = sequence.slot, sequence.num_computed_tokens, sequence.tokens
        assert slot is not None, "a row belongs to a running sequence"
        end = sequence.num_computed_tokens = start + num_tokens
        token_ids = tokens[start:end]
        proposals = self.proposals.get(sequence) if self.proposals else None
        if proposals is not None:
            token_ids += proposals
            end -= len(proposals)
        elif len(token_ids) < num_tokens:
            token_ids.append(LAST_SAMPLED)
        updates: list[BlockUpdate] = []
        if sequence.pending_updates:
            updates, sequence.pending_updates = sequence.pending_updates, updates
        request, num_forced = sequence.request, 0
        sample = end == len(tokens) + sequence.num_pending and request.sampling.max_tokens > 0
        if sample:
            sequence.num_pending += 1
            if request.mask is not None:
                outputs = tokens[sequence.num_prompt :]
                if proposals and sequence in self.forced:
                    num_forced = len(proposals)
                    outputs += proposals
                verified = proposals if proposals and not num_forced else []
                self._masks[slot] = request.mask.pack(sequence.index, outputs, verified)
        prompt_logprobs = request.wants_prompt_logprobs and sequence.leads
        num_proposals = len(proposals) if proposals else 0
        saves = self.saves.get(sequence, []) if self.saves else []
        return Row(slot, start, token_ids, updates, sample, prompt_logprobs, num_proposals, num_forced, saves)


@dataclass(slots=True)
class StepUpdate:
    """What a step's result changed."""

    shape: StepShape
    """What was computed."""
    deltas: list[TokenDelta] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)
    """Requests whose last choice ended."""


@dataclass(slots=True)
class SubmittedStep:
    """A step whose result is not there yet."""

    plan: StepPlan
    sequences: Collection[Sequence]
    """One for each of the plan's rows, in their order."""
    shape: StepShape
    discarded: set[Sequence] = field(default_factory=set)
    """Sequences that stopped or were preempted since the step was planned: its results for them are dropped."""


def _new_sequence(sequence: Sequence) -> NewSequence:
    request, slot = sequence.request, sequence.slot
    assert slot is not None, "an admitted sequence has a slot"
    outputs = sequence.tokens[sequence.num_prompt :]
    snapshot = NO_SNAPSHOT if sequence.snapshots is None else sequence.snapshots.start
    return NewSequence(slot, request.sampling, sequence.seed, request.prompt, outputs, request.scope.adapter, snapshot)


def apply_result(sequence: Sequence, row: Row, result: RowResult) -> TokenDelta | None:
    """Take the tokens that a row drew, and go back by the proposals that were wrong.

    Returns the delta to send: None where there is nothing to tell.
    """
    request = sequence.request
    if result.prompt_logprobs is not None:
        _collect_prompt_logprobs(request, row.start, result.prompt_logprobs)
    num_prompt = sequence.num_prompt
    first = row.start < num_prompt and sequence.leads and len(sequence.tokens) == num_prompt
    kept = sequence.accept(result.token_ids)
    if row.sample:
        sequence.num_pending -= 1
        if row.num_proposals:
            rejected = row.num_proposals + 1 - len(result.token_ids)
            sequence.num_computed_tokens = min(sequence.num_computed_tokens - rejected, len(sequence.tokens))
    elif request.sampling.max_tokens > 0 or row.start + len(row.token_ids) < len(sequence.tokens):
        return None
    else:  # only the prompt was to be computed
        sequence.finish_reason = FinishReason.LENGTH
    logprobs = result.logprobs[: len(kept)] if result.logprobs is not None else None
    if first:
        return _first_delta(sequence, kept, logprobs)
    return TokenDelta(
        request_id=request.request_id,
        index=sequence.index,
        token_ids=kept,
        logprobs=logprobs,
        finish_reason=sequence.finish_reason,
    )


def _first_delta(sequence: Sequence, kept: list[int], logprobs: list[PositionLogprobs] | None) -> TokenDelta:
    """The request's first: it carries what is told once."""
    request = sequence.request
    assert request.first_step_s is not None, "a sequence that ran has had its first step"
    return TokenDelta(
        request_id=request.request_id,
        index=sequence.index,
        token_ids=kept,
        logprobs=logprobs,
        prompt_logprobs=request.prompt_logprobs if request.sampling.prompt_logprobs is not None else None,
        finish_reason=sequence.finish_reason,
        cached_tokens=request.cached_tokens,
        queue_s=request.first_step_s - request.arrival_s,
    )


def _collect_prompt_logprobs(request: Request, start: int, entries: list[PositionLogprobs]) -> None:
    """Entry i belongs to prompt position start + 1 + i; positions computed a second time are known already."""
    known = len(request.prompt_logprobs) - (start + 1)
    request.prompt_logprobs.extend(entries[known:])
    request.wants_prompt_logprobs = len(request.prompt_logprobs) < len(request.prompt)
