"""The loop's body: messages in, one step, deltas out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvarn.config.schema import EngineConfig
from kvarn.engine.admission import AdmissionControl
from kvarn.engine.errors import AdmissionError, IntegrityError
from kvarn.engine.kv_memory import KVMemory
from kvarn.engine.memory_pressure import OffloadPreemption, Preemption, RecomputePreemption
from kvarn.engine.plan import Executor, KVConnector
from kvarn.engine.request import Proposer, Request, TokenMask
from kvarn.engine.scheduler import Scheduler
from kvarn.engine.stats import StatsRecorder
from kvarn.engine.step_time import StepTimeModel
from kvarn.wire.messages import EngineStats, RefusalReason, Refused, Submit, TokenDelta


@dataclass(slots=True)
class EngineOutput:
    """What one step has to tell the gateways."""

    computed: bool = False
    """Whether a step's result was there."""
    deltas: list[TokenDelta] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


class EngineCore:
    """The scheduling loop of one replica. Not thread-safe: one loop owns it.

    Planning ahead of the executor, proposers, masks and KV connectors are seams: tests use them, `replica/server` gives
    none yet.

    Args:
        executor: Runs the plans.
        config: How to schedule.
        clock: Seconds, monotonic; the engine never reads the time elsewhere.
        namespace: Name of the model, part of every block's hash.
        preemption: How to make room; by default blocks are stored where there is a connector, else computed again.
        step_time: What predicts a step's time; by default one that knows nothing yet.
        proposer: Guesses tokens to verify. It needs all known tokens, so one step at a time is planned then.
        masks: The mask of a request's tokens, None for one without.
        connector: Keeps KV blocks beyond the device; the executor must have the same.
    """

    def __init__(
        self,
        executor: Executor,
        config: EngineConfig,
        clock: Callable[[], float],
        *,
        namespace: str = "",
        preemption: Preemption | None = None,
        step_time: StepTimeModel | None = None,
        proposer: Proposer | None = None,
        masks: Callable[[Submit], TokenMask | None] | None = None,
        connector: KVConnector | None = None,
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._max_in_flight = 1 if proposer is not None else executor.max_in_flight
        self._masks = masks
        memory = KVMemory(executor.num_blocks, config.prefix_cache, namespace, connector)
        preemption = preemption or (RecomputePreemption() if connector is None else OffloadPreemption())
        self.scheduler = Scheduler(config, memory, preemption, step_time, proposer)
        self._max_context_length = executor.max_context_length
        self._admission = AdmissionControl(config, executor.num_blocks, executor.max_context_length)
        self._requests: dict[str, Request] = {}
        self._num_arrived = 0
        self._recorder = StatsRecorder(self.scheduler)

    def add(self, message: Submit) -> None:
        """Take a request; its tokens come out of later steps.

        Raises:
            AdmissionError: Refused, with the reason; nothing of the request is kept.
        """
        try:
            if message.request_id in self._requests:
                raise AdmissionError(
                    RefusalReason.DUPLICATE_ID, f"a request {message.request_id!r} is running: choose another id"
                )
            self._admission.check(message, lambda: self._recorder.retry_after_s(self._admission.waiting_tokens))
        except AdmissionError as refusal:
            self._recorder.count_refusal(refusal.reason)
            raise
        account = self.scheduler.tenants.open(message.tenant, message.weight)
        self._num_arrived += 1
        mask = self._masks(message) if self._masks is not None else None
        request = Request(message, account, self._clock(), self._num_arrived, self._max_context_length, mask)
        self._requests[request.request_id] = request
        self._admission.enter(request)
        self.scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """Forget a request; its blocks are free when this returns. Unknown ids are ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            self.scheduler.remove(request)
            self._forget(request)
            self._recorder.aborts += 1

    def abort_all(self) -> list[str]:
        """Abort every request; returns their ids."""
        aborted = list(self._requests)
        for request_id in aborted:
            self.abort(request_id)
        return aborted

    def start_draining(self) -> None:
        """Refuse new requests from now on; those that are here go on."""
        self._admission.draining = True

    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._requests) or self.scheduler.num_in_flight > 0

    def step(self) -> EngineOutput:
        """Refuse what has waited too long, keep the executor busy, take the result of the oldest step.

        What the executor raises passes through.
        """
        now = self._clock()
        output = EngineOutput(refused=self._refuse_overdue(now))
        while self.scheduler.num_in_flight < self._max_in_flight and self._submit_step(now):
            pass
        if self.scheduler.num_in_flight:
            self._collect_step(output)
        return output

    def _submit_step(self, now: float) -> bool:
        """Plan a step and hand it to the executor; False where there is nothing to compute."""
        plan = self.scheduler.schedule(now)
        if plan is None:
            return False
        for request in self.scheduler.drain_started():
            self._admission.leave(request)
        self._executor.submit(plan)
        return True

    def _collect_step(self, output: EngineOutput) -> None:
        result = self._executor.collect()
        update = self.scheduler.update(result)
        self._recorder.count_step(update.shape, result)
        for request in update.finished:
            self._forget(request)
            self._recorder.finished += 1
        output.computed, output.deltas = True, update.deltas

    def stats(self) -> EngineStats:
        """Gauges and totals now."""
        return self._recorder.stats()

    def check_integrity(self) -> None:
        """Recount everything. Valid between steps; with nothing to do, nothing may be held.

        Raises:
            IntegrityError: The engine's records contradict each other.
        """
        self.scheduler.check_integrity()
        live = sum(
            1 for request in self._requests.values() for sequence in request.sequences if not sequence.finish_reason
        )
        if live != len(self.scheduler.running) + len(self.scheduler.queue):
            raise IntegrityError(f"{live} sequences are unfinished, but others run or wait")
        if not self._requests and self.scheduler.memory.pool.num_held:
            raise IntegrityError("no request is here, but blocks are held")

    def _refuse_overdue(self, now: float) -> list[Refused]:
        refused: list[Refused] = []
        for request in self._admission.overdue(now):
            self.scheduler.remove(request)
            self._forget(request)
            self._recorder.count_refusal(RefusalReason.QUEUE_TIMEOUT)
            waited = now - request.arrival_s
            refused.append(
                Refused(
                    request_id=request.request_id,
                    reason=RefusalReason.QUEUE_TIMEOUT,
                    message=f"waited {waited:.0f} s without a free place: try again later",
                    retry_after_s=self._recorder.retry_after_s(self._admission.waiting_tokens),
                )
            )
        return refused

    def _forget(self, request: Request) -> None:
        del self._requests[request.request_id]
        self._admission.leave(request)
        self.scheduler.tenants.close(request.account)
