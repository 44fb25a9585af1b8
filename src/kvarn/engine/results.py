"""Results of steps: drawn tokens, deltas for the gateways, blocks for the prefix cache, ends of sequences."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from kvarn.engine.errors import ProtocolError
from kvarn.engine.fast_forward import DecodeSteps, advance_blocks
from kvarn.engine.latency_targets import LatencyTargets
from kvarn.engine.memory.kv_cache_manager import KVCacheManager
from kvarn.engine.memory.pressure import MemoryReserve
from kvarn.engine.plan import Row, RowResult, StepResult
from kvarn.engine.proposals.speculation import Speculation
from kvarn.engine.request import Request, Sequence
from kvarn.engine.running import RunningSequences
from kvarn.engine.step import SubmittedStep
from kvarn.engine.step_time import StepTimeModel
from kvarn.engine.tenants import TenantAccounts
from kvarn.engine.waiting_queue import WaitingQueue
from kvarn.wire.messages import FinishReason, PositionLogprobs, TokenDelta


@dataclass(slots=True)
class SchedulerTotals:
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0


@dataclass(slots=True)
class StepUpdate:
    step: SubmittedStep
    drawn: list[int] = field(default_factory=list)  # tokens kept of each of its rows
    deltas: list[TokenDelta] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)  # requests whose last choice ended


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResults:
    """Takes the results of steps, in the order of their plans. The fields are the scheduler's own parts."""

    memory: KVCacheManager
    running: RunningSequences
    queue: WaitingQueue
    tenants: TenantAccounts
    targets: LatencyTargets
    reserve: MemoryReserve
    speculation: Speculation | None
    totals: SchedulerTotals

    def take(self, step: SubmittedStep, result: StepResult, now: float) -> StepUpdate:
        if result.step != step.plan.step or len(result.rows) != len(step.sequences):
            raise ProtocolError(f"the result of step {result.step} does not answer the plan of step {step.plan.step}")
        update, discarded = StepUpdate(step), step.discarded
        for sequence, row, row_result in zip(step.sequences, step.plan.rows, result.rows, strict=True):
            if row.slot != row_result.slot:
                raise ProtocolError(f"step {result.step}: a result for slot {row_result.slot} out of turn")
            kept = 0
            if not discarded or sequence not in discarded:
                kept = self._take_row(sequence, row, row_result, update, now)
            update.drawn.append(kept)
        return update

    def advance(self, steps: DecodeSteps, tokens: list[list[int]], step_time: StepTimeModel) -> list[int]:
        """Take steps of single tokens at once; returns the blocks that were free once each was planned."""
        count = len(steps)
        self.targets.advance(steps.planned_s, steps.elapsed_s)
        self.reserve.growth.advance(count)
        self.totals.steps += count
        self.totals.output_tokens += count * len(tokens)
        for sequence, drawn in zip(steps.sequences, tokens, strict=True):
            sequence.tokens += drawn
            sequence.last_step = self.totals.steps
            self.tenants.charge_outputs(sequence.account, count)
        free_blocks = advance_blocks(self.memory, steps, step_time)
        self.memory.pool.now = steps.ends_s[-1]
        return free_blocks

    def stop(self, sequence: Sequence, now: float) -> None:
        self.memory.release(sequence)
        self.running.leave(sequence, now)
        if self.speculation is not None:
            self.speculation.forget(sequence)

    def _take_row(self, sequence: Sequence, row: Row, result: RowResult, update: StepUpdate, now: float) -> int:
        """Take a row's result; returns the number of drawn tokens that are kept."""
        request, drawn = sequence.request, 0
        delta = apply_result(sequence, row, result)
        self.memory.publish(sequence)
        if delta is not None:
            drawn = len(delta.token_ids)
            self.totals.output_tokens += drawn
            self.tenants.charge_output(request.account, drawn)
            if not request.turn.is_decoding and drawn:
                delta = _with_events(delta, request.turn.decode(now))
            update.deltas.append(delta)
        if row.start < sequence.num_prompt <= row.start + len(row.token_ids):
            self.reserve.prefix_changes += 1
        if request.siblings and sequence.num_prompt <= row.start + len(row.token_ids):
            for sibling in request.fork():
                self.queue.push(sibling)
        if row.num_proposals > row.num_forced:
            self._count_proposals(sequence, row.num_proposals, len(result.token_ids) - 1)
        if sequence.finish_reason is not None:
            self._finish(sequence, update, now)
        return drawn

    def _finish(self, sequence: Sequence, update: StepUpdate, now: float) -> None:
        request = sequence.request
        self.stop(sequence, now)
        request.num_unfinished -= 1
        if not request.num_unfinished:
            self.targets.learn(request)
            update.finished.append(request)
            drawn = sum([each.num_outputs for each in request.sequences])
            update.deltas[-1] = _with_events(update.deltas[-1], request.turn.finish(now, drawn))

    def _count_proposals(self, sequence: Sequence, proposed: int, accepted: int) -> None:
        assert self.speculation is not None, "only a proposer makes rows with proposals"
        self.speculation.observe(sequence, proposed, accepted)
        turn = sequence.request.turn
        turn.proposed_tokens += proposed
        turn.accepted_tokens += accepted
        self.tenants.charge_rejected(sequence.request.account, proposed - accepted)


def _with_events(delta: TokenDelta, events: list[int] | None) -> TokenDelta:
    if events is None:
        return delta
    return msgspec.structs.replace(delta, events=[*(delta.events or ()), *events])


def apply_result(sequence: Sequence, row: Row, result: RowResult) -> TokenDelta | None:
    """Take the tokens that a row drew, go back by wrong proposals; returns the delta to send, None for nothing to
    tell."""
    request = sequence.request
    if result.prompt_logprobs is not None:
        _collect_prompt_logprobs(request, row.start, result.prompt_logprobs)
    num_prompt = sequence.num_prompt
    # The request's first delta carries what is told once.
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
    wants_prompt = first and request.sampling.prompt_logprobs is not None
    return TokenDelta(
        request_id=request.request_id,
        index=sequence.index,
        token_ids=kept,
        logprobs=result.logprobs[: len(kept)] if result.logprobs is not None else None,
        prompt_logprobs=request.prompt_logprobs if wants_prompt else None,
        finish_reason=sequence.finish_reason,
        cached_tokens=request.cached_tokens if first else 0,
    )


def _collect_prompt_logprobs(request: Request, start: int, entries: list[PositionLogprobs]) -> None:
    """Entry i belongs to prompt position start + 1 + i; positions computed a second time are known already."""
    known = len(request.prompt_logprobs) - (start + 1)
    request.prompt_logprobs.extend(entries[known:])
    request.wants_prompt_logprobs = len(request.prompt_logprobs) < len(request.prompt)
