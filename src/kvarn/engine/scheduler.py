"""Rows of the next step, and the changes by its result.

`schedule` is the whole policy of a step, top to bottom: make room for a better priority, go on with what runs, let in
what waits. `update` takes the result. Both are deterministic: the same requests at the same times give the same plans.
"""

from __future__ import annotations

from kvarn.config.engine import EngineConfig
from kvarn.config.speculation import SpeculationConfig
from kvarn.engine.errors import OutOfBlocksError
from kvarn.engine.fast_forward import DecodeSteps
from kvarn.engine.latency_targets import CREDIT_REQUESTS, LatencyTargets
from kvarn.engine.memory.kv_cache_manager import KVCacheManager, PrefixMatch
from kvarn.engine.memory.pressure import MemoryReserve
from kvarn.engine.plan import BlockCopy, StepPlan, StepResult
from kvarn.engine.proposals.proposer import Proposer
from kvarn.engine.proposals.speculation import Speculation
from kvarn.engine.request import Request, Sequence
from kvarn.engine.results import SchedulerTotals, StepResults, StepUpdate
from kvarn.engine.running import RunningSequences
from kvarn.engine.step import StepBuilder, SubmittedStep
from kvarn.engine.step_time import StepTimeModel
from kvarn.engine.tenants import TenantAccounts
from kvarn.engine.turn import QueueWaits
from kvarn.engine.waiting_queue import WaitingQueue
from kvarn.fairness.trees import TreeShares
from kvarn.observe.timeline import Phase
from kvarn.shapes import BLOCK_SIZE

MAX_HEAD_START = 0.25
"""Head start of a session's next turn at most, as a part of `priority_ageing_s`."""


class Scheduler:
    """Shares each step's tokens, the slots and the KV blocks among sequences."""

    LOOK_AHEAD = 64
    """Waiting sequences that are tried in one step past ones that do not fit."""

    def __init__(
        self,
        config: EngineConfig,
        memory: KVCacheManager,
        step_time: StepTimeModel | None = None,
        proposer: Proposer | None = None,
        speculation: SpeculationConfig | None = None,
        micro_batches: int = 1,
    ) -> None:
        self._config = config
        self._micro_batches = micro_batches
        self.memory = memory
        self.tenants = TenantAccounts(config.input_token_weight, config.output_token_weight)
        self.step_time = step_time or StepTimeModel()
        self._running = RunningSequences(config.max_num_seqs)
        self.running = self._running.sequences
        self._in_flight = self._running.in_flight
        self._targets = LatencyTargets(config, self.step_time, self.running)
        self._trees = TreeShares()
        self.queue = WaitingQueue(config.priority_ageing_s, self._targets.misses_target)
        self.totals = SchedulerTotals()
        self.speculation: Speculation | None = None
        if proposer is not None:
            self.speculation = Speculation(proposer, speculation or SpeculationConfig(), self.step_time)
        self._started: list[Request] = []
        self._memory_reserve = MemoryReserve(memory, self.running)
        self.waits = QueueWaits()
        self._now = 0.0  # time of the step that is planned, or whose result was taken
        self._results = StepResults(
            memory=memory,
            running=self._running,
            queue=self.queue,
            tenants=self.tenants,
            targets=self._targets,
            reserve=self._memory_reserve,
            speculation=self.speculation,
            totals=self.totals,
        )

    # What waits ------------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request. It goes by its session tree's share of the tenant's. The next turn of a session whose KV is
        here goes before those that came up to as many seconds earlier as computing that again would take: soon it may
        have to. That is bounded, so nobody is overtaken for ever."""
        session, now = request.session, request.arrival_s
        tree = None if session is None else session.tree or session.id
        request.share, queued_s = self._trees.enter(request.account.name, tree, now)
        resident = self.memory.begin_turn(request, now)
        most_s = MAX_HEAD_START * self._config.priority_ageing_s
        request.queued_s = queued_s - min(most_s, self.step_time.fitted.prompt_s(resident))
        self.queue.push(request.sequences[0], new=True)
        self.memory.adapters.prefetch(request.scope.adapter, self._memory_reserve.spare_blocks)
        self.memory.prefetch(request.sequences[0], request.arrival_s)

    def end(self, request: Request, now: float) -> None:
        """A request is over, however it ended."""
        if request.share is not None:
            self._trees.leave(request.share)
            self.memory.end_turn(request, now)

    def remove(self, request: Request) -> None:
        for sequence in request.sequences:
            if sequence.finish_reason is not None:
                continue
            if sequence.slot is not None:
                self._results.stop(sequence, self._now)
                continue
            self.queue.remove(sequence)
            self.memory.leave_queue(sequence)
            if self.speculation is not None:
                self.speculation.forget(sequence)

    def drain_started(self) -> list[Request]:
        started, self._started = self._started, []
        return started

    # A step ----------------------------------------------------------------------------------------------------------

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def latest_step(self) -> SubmittedStep:
        """The step planned last; its result is not there."""
        return self._in_flight[-1]

    @property
    def needs_results(self) -> bool:
        return self.speculation is not None and self.speculation.needs_results

    def schedule(self, now: float) -> StepPlan | None:
        """Decide the next step, as if those in flight had run; None where there is nothing to compute."""
        self._now = self.memory.pool.now = now
        step = StepBuilder(self._config, self.step_time, self._targets.step_limit_s)
        if self.memory.announced is not None:
            self.memory.announced.end_overdue(now)
        if self.memory.adapters.poll():
            self._memory_reserve.prefix_changes += 1
        was_busy = bool(self.running)
        if self.queue:
            self._targets.look()
            self.queue.lateness_cost = CREDIT_REQUESTS * self._targets.usual_cost
        self._preempt_for_priority(now)
        self._continue_running(step)
        if step.preempted:
            held_by = Phase.WAIT_BLOCKS
        else:
            held_by = self._admit_waiting(step, now) if self._can_start_some() else Phase.WAIT_SLOT
        self.waits.hold(held_by, now)
        if not step.rows and (self._in_flight or not self.memory.has_transfers):
            return None
        step.add_forced(self.memory)
        if self.speculation is not None:
            self.speculation.extend(step, self.memory, ahead=bool(self._in_flight))
        for sequence, saves in self.memory.plan_saves(step.rows).items():
            step.extra(sequence).saves = saves
        self.totals.steps += 1
        self._targets.planned(now, is_busy=was_busy)
        self._memory_reserve.growth.observe(step.preempted)
        submitted = step.build(now, self.totals.steps, self._running.drain_released(), *self.memory.drain_transfers())
        submitted.free_blocks = self.memory.pool.num_available
        self._in_flight.append(submitted)
        return submitted.plan

    def update(self, result: StepResult, now: float) -> StepUpdate:
        """Take the result of the oldest step in flight. Raises `ProtocolError` where it does not answer that step's
        plan."""
        self._now = self.memory.pool.now = now
        step = self._in_flight.popleft()
        update = self._results.take(step, result, now)
        if step.plan.rows:
            self._targets.took(result.elapsed_s, warming=result.warming)
        if step.plan.rows and not result.warming:
            self.step_time.observe(step.shape, result.elapsed_s - result.transfer_s)
        if self.memory.tiers is not None:
            self.memory.tiers.observe(len(step.plan.kv_stores) + len(step.plan.kv_loads), result)
        return update

    # Many steps at once (`kvarn.engine.fast_forward`) ----------------------------------------------------------------

    @property
    def only_decodes(self) -> bool:
        """Whether nothing but tokens of those that run is to be computed, in steps that nothing else is part of."""
        return (
            0 < len(self.running) <= self._config.token_budget
            and not self.queue
            and not self._in_flight
            and self.speculation is None
            and self._micro_batches == 1
            and not self.memory.has_parts
        )

    def drain_released(self) -> list[int]:
        return self._running.drain_released()

    def advance(self, steps: DecodeSteps, tokens: list[list[int]]) -> list[int]:
        """Take steps that have run: `tokens` are those that each sequence drew. Returns the free blocks of each."""
        for planned_s in (steps.planned_s[0], steps.planned_s[-1]):
            self.waits.hold(Phase.WAIT_SLOT, planned_s)
        free_blocks = self._results.advance(steps, tokens, self.step_time)
        self._now = steps.ends_s[-1]
        return free_blocks

    # Going on --------------------------------------------------------------------------------------------------------

    def _continue_running(self, step: StepBuilder) -> None:
        """Single tokens first (the answers that people watch grow), then parts of prompts."""
        singles: list[Sequence] = []
        partial: list[Sequence] = []
        running = [each for each in self.running if not self._awaits(each)] if self._in_flight else self.running
        for sequence in running:
            uncomputed = len(sequence.tokens) + sequence.num_pending - sequence.num_computed_tokens
            (singles if uncomputed == 1 else partial).append(sequence)
        kept_for_prompts = self._kept_for_prompts() if partial or self._can_start_some() else 0
        if len(singles) > step.tokens_left - kept_for_prompts:
            singles.sort(key=_least_served_first)
        partial.sort(key=_least_served_first)
        for sequence in singles[: -(-len(self.running) // self._micro_batches)]:
            if step.tokens_left <= kept_for_prompts:
                break
            if sequence.slot is not None:
                self._compute(step, sequence, 1)
        for sequence in partial:
            if sequence.slot is None:
                continue
            share = step.share(sequence.num_computed_tokens, sequence.num_tokens - sequence.num_computed_tokens)
            if share:
                self._compute(step, sequence, share)

    def _awaits(self, sequence: Sequence) -> bool:
        return sequence.awaits_result or (self._micro_batches > 1 and sequence.num_pending > 0)

    def _can_start_some(self) -> bool:
        return len(self.queue) > 0 and self._running.has_free_slot

    def _kept_for_prompts(self) -> int:
        """Tokens of each step reserved for prefill, so that decodes cannot use the whole budget."""
        return min(self._config.min_prefill_chunk, self._config.token_budget // 4)

    def _compute(self, step: StepBuilder, sequence: Sequence, num_tokens: int) -> None:
        end = sequence.num_computed_tokens + num_tokens
        if not self.memory.is_reserved(sequence, end) and not self._reserve(step, sequence, end):
            return
        if sequence.num_charged < sequence.num_prompt:
            self._charge_prompt(step, sequence, end)
        sequence.last_step = self.totals.steps + 1
        step.add(sequence, num_tokens)

    def _reserve(self, step: StepBuilder, sequence: Sequence, end: int) -> bool:
        """Get blocks up to position `end`, preempting others; False where in the end the sequence itself was
        preempted."""
        copies: list[BlockCopy] = []
        while True:
            try:
                self.memory.reserve(sequence, end, copies)
                break
            except OutOfBlocksError:
                step.extra(sequence).copies = copies
                victim = max(self.running, key=lambda each: each.rank)
                self._charge(victim, -step.remove(victim))  # a row that it has in this step
                self._preempt(victim)
                step.preempted = True
                if victim is sequence:
                    return False
        if copies:
            step.extra(sequence).copies = copies
        return True

    def _charge_prompt(self, step: StepBuilder, sequence: Sequence, end: int) -> None:
        charged = min(end, sequence.num_prompt) - sequence.num_charged
        if charged > 0:
            step.extra(sequence).charged = charged
            self._charge(sequence, charged)

    def _charge(self, sequence: Sequence, prompt_tokens: int) -> None:
        sequence.num_charged += prompt_tokens
        self.totals.prompt_tokens += prompt_tokens
        self.tenants.charge_input(sequence.request.account, prompt_tokens)

    # Giving way ------------------------------------------------------------------------------------------------------

    def _preempt(self, sequence: Sequence) -> None:
        sequence.request.turn.preempted(sequence.num_computed_tokens, self._now)
        self.memory.suspend(sequence)
        self._running.leave(sequence, self._now)
        self.queue.push(sequence)
        self.totals.preemptions += 1

    def _preempt_for_priority(self, now: float) -> None:
        """Make room for the first in the queue, if it is of a better tier than running ones and does not fit.

        Tiers are compared as of now on both sides, a running sequence ageing on. Which of two is better then never
        turns round, so they cannot push each other out in turn.
        """
        best = self.queue.best_priority
        if best is None or all(other.tier <= best for other in self.running):
            return
        sequence = self.queue.first(now)
        assert sequence is not None, "a queue with a best priority is not empty"
        if self.memory.must_wait(sequence, now):
            return
        tier = self.queue.tier(sequence, now)
        worse = [other for other in self.running if self.queue.tier(other, now) > tier]
        worse.sort(key=lambda other: other.rank)
        if not worse:
            return
        if not self._memory_reserve.fits_without(sequence, worse):
            return
        if not self._targets.has_room(sequence, worse[-1]):  # it would not start
            return
        while worse and (not self._running.has_free_slot or self._memory_reserve.missing_blocks(sequence) > 0):
            self._preempt(worse.pop())

    # Letting in ------------------------------------------------------------------------------------------------------

    def _admit_waiting(self, step: StepBuilder, now: float) -> Phase:
        """Start waiting sequences in the queue's order while tokens, slots and blocks last. Those whose adapter is not
        there have it loaded where there is room, and wait for that while others start.

        One that does not fit is passed over; after `priority_ageing_s` seconds blocked, admission stops at that
        sequence until it fits. Returns why the rest waits.
        """
        spare, adapters = self._memory_reserve.spare_blocks(), self.memory.adapters
        passed = 0
        for sequence in self.queue.candidates(now):
            if not step.tokens_left:
                return Phase.WAIT_BUDGET
            if not self._running.has_free_slot:
                return Phase.WAIT_SLOT
            if passed == self.LOOK_AHEAD:
                return Phase.WAIT_BLOCKS
            adapter, turn = sequence.request.scope.adapter, sequence.request.turn
            if self.memory.must_wait(sequence, now):
                turn.wait(Phase.WAIT_FETCH, now)
                continue
            match = self._memory_reserve.fitting_match(sequence, spare)
            if match is None:
                passed += 1
                turn.wait(Phase.WAIT_BLOCKS, now)
                if sequence.blocked_since_s is None:
                    sequence.blocked_since_s = now
                elif now - sequence.blocked_since_s > self._config.priority_ageing_s:
                    return Phase.WAIT_BLOCKS
                continue
            if not adapters.is_ready(adapter):
                turn.wait(Phase.WAIT_ADAPTER, now)
                spare -= adapters.begin_load(adapter)
                continue
            turn.wait(None, now)
            share = step.share(match.num_computed_tokens, sequence.num_tokens - match.num_computed_tokens)
            if not share:
                return Phase.WAIT_BUDGET
            if not self._targets.has_room(sequence):
                return Phase.WAIT_LATENCY
            self._start(sequence, match, now)
            step.admitted.append(sequence)
            self._compute(step, sequence, share)
            spare -= self._memory_reserve.wanted_blocks(sequence, match)
        return Phase.WAIT_STEP

    def _start(self, sequence: Sequence, match: PrefixMatch, now: float) -> None:
        sequence.tier = self.queue.tier(sequence, now)
        self.queue.start(sequence, self._targets.cost(sequence))
        self.memory.place(sequence, match)
        self.memory.leave_queue(sequence)
        sequence.blocked_since_s = None
        sequence.blocks_wanted = 0
        self._running.enter(sequence)
        request, computed = sequence.request, sequence.num_computed_tokens
        recomputed = sequence.num_tokens - computed if sequence.last_step else 0
        request.turn.start(now, computed, len(match.loads) * BLOCK_SIZE, recomputed)
        if request.share is not None:
            self._trees.begin(request.share, now)
        if request.first_step_s is None:
            request.first_step_s = now
            self._started.append(request)
            request.cached_tokens = sequence.num_computed_tokens
            self.totals.cached_tokens += sequence.num_computed_tokens
            self.memory.count_lookup(sequence)
        if sequence.leads:
            sequence.num_charged = max(sequence.num_charged, min(sequence.num_computed_tokens, sequence.num_prompt))

    def check_integrity(self) -> None:
        self._running.check_integrity()
        self.memory.check_integrity(list(self.running))
        self.queue.check_integrity()


def _least_served_first(sequence: Sequence) -> tuple[int, float, int, float, int, int]:
    request = sequence.request
    return (
        sequence.tier,
        request.account.counter,
        sequence.last_step,
        request.arrival_s,
        request.order,
        sequence.index,
    )
