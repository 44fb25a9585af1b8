"""Gauges and totals of one engine, and what they say about how long a retry should wait."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from kvarn.costs.step_times import StepShape
from kvarn.engine.memory.adapters import AdapterResidency
from kvarn.engine.memory.tiers import KVTiers
from kvarn.engine.plan import StepResult
from kvarn.engine.proposals.speculation import Speculation
from kvarn.engine.scheduler import Scheduler
from kvarn.engine.sessions.table import Sessions
from kvarn.shapes import BLOCK_SIZE
from kvarn.wire.engine_stats import STEP_TOKENS, AdapterStats, LookupStats, SessionStats, SpeculationStats, WorkStats
from kvarn.wire.messages import EngineStats, RefusalReason

if TYPE_CHECKING:
    from kvarn.engine.fast_forward import DecodeSteps

_NO_LOOKUPS, _NO_SPECULATION = LookupStats(), SpeculationStats()


class StatsRecorder:
    """Counts what happens; reads the rest from the scheduler when asked."""

    MIN_RETRY_S = 1.0
    MAX_RETRY_S = 600.0

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._refused: dict[str, int] = {}
        self._last_tokens = 0
        self._last_rows = 0
        self._last_step_s = 0.0
        self._tokens_per_s = 0.0
        self._kv_tokens_read = 0
        self._pairs = 0.0
        self._steps_by_tokens = [0] * (len(STEP_TOKENS) + 1)
        self._step_tokens = 0
        self.aborts = 0
        self.finished = 0

    def count_refusal(self, reason: RefusalReason) -> None:
        self._refused[reason.value] = self._refused.get(reason.value, 0) + 1

    def count_step(self, shape: StepShape, result: StepResult) -> None:
        """A step of this shape ran. The throughput is a moving average over about 50 steps."""
        self._last_tokens = shape.num_tokens
        self._step_tokens += self._last_tokens
        self._steps_by_tokens[bisect_left(STEP_TOKENS, self._last_tokens)] += 1
        self._kv_tokens_read += shape.decode_context
        self._pairs += shape.decode_context + shape.prefill_pairs
        self._last_rows = len(result.rows)
        self._last_step_s = result.elapsed_s
        if result.elapsed_s > 0:
            speed = self._last_tokens / result.elapsed_s
            self._tokens_per_s += (speed - self._tokens_per_s) * (0.02 if self._tokens_per_s else 1.0)

    def count_decodes(self, rows: int, context: int, elapsed_s: Sequence[float]) -> None:
        """Steps of so many decodes: `context` tokens in the first, one more for each row in each that follows."""
        steps = len(elapsed_s)
        contexts = _contexts(rows, context, steps)
        self._last_tokens = self._last_rows = rows
        self._step_tokens += steps * rows
        self._steps_by_tokens[bisect_left(STEP_TOKENS, rows)] += steps
        self._kv_tokens_read += contexts
        self._pairs += contexts
        self._last_step_s = elapsed_s[-1]
        average = self._tokens_per_s
        for seconds in elapsed_s:
            if seconds > 0:
                average += (rows / seconds - average) * (0.02 if average else 1.0)
        self._tokens_per_s = average

    def retry_after_s(self, waiting_tokens: int) -> float:
        if not self._tokens_per_s:
            return self.MIN_RETRY_S
        return min(max(waiting_tokens / self._tokens_per_s, self.MIN_RETRY_S), self.MAX_RETRY_S)

    def stats(self, preparing: int = 0) -> EngineStats:
        scheduler = self._scheduler
        pool, totals = scheduler.memory.pool, scheduler.totals
        contexts, known, computed = [], 0, 0
        for each in scheduler.running:
            num_tokens, num_computed = each.num_tokens, each.num_computed_tokens
            known, computed = known + num_tokens, computed + num_computed
            if num_tokens - num_computed == 1:
                contexts.append(num_tokens)
        tiers, waiting = scheduler.memory.tiers, len(scheduler.queue) + preparing
        return EngineStats(
            step=totals.steps,
            running=len(scheduler.running),
            waiting=waiting,
            waiting_by_reason=scheduler.waits.by_reason(waiting),
            steps_by_tokens=list(self._steps_by_tokens),
            step_tokens_total=self._step_tokens,
            waiting_by_priority=scheduler.queue.by_priority(),
            waiting_tokens_by_priority=scheduler.queue.tokens_by_priority(),
            prefill_tokens=max(0, known - computed - len(contexts)),
            decode_rows=len(contexts),
            decode_context=sum(contexts),
            step_times=scheduler.step_time.latest if scheduler.step_time.is_measured else None,
            kv_blocks_total=pool.num_blocks,
            kv_blocks_free=pool.num_available,
            kv_blocks_cached=pool.num_idle,
            kv_waste_ratio=self._kv_waste_ratio(computed),
            batch_tokens=self._last_tokens,
            batch_seqs=self._last_rows,
            step_s=self._last_step_s,
            prompt_tokens_total=totals.prompt_tokens,
            cached_tokens_total=totals.cached_tokens,
            output_tokens_total=totals.output_tokens,
            preemptions_total=totals.preemptions,
            aborts_total=self.aborts,
            finished_total=self.finished,
            refused_total=dict(self._refused),
            evictions_total=scheduler.memory.cache.evictions,
            tenant_tokens_total=scheduler.tenants.served_tokens(),
            kv_tiers={} if tiers is None else tiers.connector.stats(),
            lookups=_lookups(tiers),
            adapters=_adapters(scheduler.memory.adapters),
            sessions=_sessions(scheduler.memory.sessions),
            speculation=_speculation(scheduler.speculation),
            work=WorkStats(kv_tokens_read_total=self._kv_tokens_read, attended_pairs_total=int(self._pairs)),
        )

    def stats_ahead(self, now: EngineStats, steps: DecodeSteps, begin: int, end: int, taken: int) -> EngineStats | None:
        """Statistics as `stats` will give them once the next steps of a run, `begin` to `end - 1`, are taken, after
        those of `now`, which `stats` gives at present, and have taken so many blocks; None where step times are
        learned."""
        memory, sequences, count = self._scheduler.memory, steps.sequences, end - begin
        if self._scheduler.step_time.learns or now.step_times is None:
            return None
        rows, served = len(sequences), dict(now.tenant_tokens_total)
        slots, computed = taken * BLOCK_SIZE, count * rows
        for sequence in sequences:
            slots += len(sequence.blocks) * BLOCK_SIZE
            computed += sequence.num_computed_tokens
            served[sequence.account.name] += count
        held_slots = (memory.pool.num_held + taken - memory.adapters.num_held) * BLOCK_SIZE
        contexts, by_tokens = _contexts(rows, steps.context + begin * rows, count), list(now.steps_by_tokens)
        by_tokens[bisect_left(STEP_TOKENS, rows)] += count
        return msgspec.structs.replace(
            now,
            step=now.step + count,
            steps_by_tokens=by_tokens,
            step_tokens_total=now.step_tokens_total + count * rows,
            decode_context=now.decode_context + count * rows,
            kv_blocks_free=now.kv_blocks_free - taken,
            kv_waste_ratio=(slots - computed) / held_slots,
            batch_tokens=rows,
            batch_seqs=rows,
            step_s=steps.elapsed_s[end - 1],
            output_tokens_total=now.output_tokens_total + count * rows,
            tenant_tokens_total=served,
            work=WorkStats(
                kv_tokens_read_total=now.work.kv_tokens_read_total + contexts,
                attended_pairs_total=now.work.attended_pairs_total + contexts,
            ),
        )

    def _kv_waste_ratio(self, computed: int) -> float:
        """Empty slots over all slots of running sequences. Only a table's last blocks have some, and those are never
        shared after a step: a sequence that shares one copies it in the step in which it starts."""
        memory = self._scheduler.memory
        held = (memory.pool.num_held - memory.adapters.num_held) * BLOCK_SIZE
        if not held:
            return 0.0
        slots = sum([len(sequence.blocks) for sequence in self._scheduler.running]) * BLOCK_SIZE
        return (slots - computed) / held


def _contexts(rows: int, context: int, steps: int) -> int:
    """Tokens that so many steps read: `context` in the first, one more for each row in each that follows."""
    return steps * context + rows * (steps * (steps - 1) // 2)


def _lookups(tiers: KVTiers | None) -> LookupStats:
    if tiers is None:
        return _NO_LOOKUPS
    asked = 0 if tiers.remote_prefill is None else tiers.remote_prefill.asked
    return LookupStats(
        queries_total=tiers.queries, hits_total=tiers.hits, given_up_total=tiers.given_up, remote_prefills_total=asked
    )


def _adapters(adapters: AdapterResidency) -> AdapterStats:
    return AdapterStats(
        running=adapters.running(),
        waiting=adapters.waiting(),
        blocks=adapters.num_resident_blocks,
        loads_total=adapters.num_loads,
        evictions_total=adapters.num_evictions,
    )


def _sessions(sessions: Sessions) -> SessionStats:
    return SessionStats(
        known=len(sessions), returns_total=sessions.returns, resident_returns_total=sessions.returns_resident
    )


def _speculation(speculation: Speculation | None) -> SpeculationStats:
    if speculation is None:
        return _NO_SPECULATION
    totals = speculation.totals
    return SpeculationStats(
        drafts_total=totals.rows,
        draft_tokens_total=totals.proposed,
        accepted_tokens_total=totals.accepted,
        accepted_tokens_per_pos_total=list(totals.accepted_by_position),
    )
