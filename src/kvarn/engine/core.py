"""The loop's body: messages in, one step, deltas out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

from kvarn.config.disaggregation import DisaggregationConfig
from kvarn.config.engine import EngineConfig
from kvarn.config.speculation import SpeculationConfig
from kvarn.engine.admission import AdmissionControl
from kvarn.engine.errors import AdmissionError, IntegrityError
from kvarn.engine.fast_forward import DecodeSteps, ForwardingExecutor
from kvarn.engine.memory.adapters import AdapterStore
from kvarn.engine.memory.block_value import ByValue, RecomputeCosts
from kvarn.engine.memory.eviction import EvictionOrder
from kvarn.engine.memory.kv_cache_manager import KVCacheManager
from kvarn.engine.memory.prefix_cache import PrefixCache, PrefixNode
from kvarn.engine.memory.remote_prefill import PrefillPeer, RemotePrefill
from kvarn.engine.memory.tiers import KVTiers
from kvarn.engine.plan import Executor, KVConnector
from kvarn.engine.proposals.proposer import Proposer
from kvarn.engine.request import Request, Sequence, TokenMask
from kvarn.engine.scheduler import Scheduler
from kvarn.engine.stats import StatsRecorder
from kvarn.engine.step_log import StepLog
from kvarn.engine.step_time import StepTimeModel
from kvarn.engine.turn import TurnRecorder
from kvarn.engine.waiting_queue import WaitingQueue
from kvarn.observe.timeline import Phase
from kvarn.wire.messages import EngineStats, RefusalReason, Refused, Submit, TokenDelta
from kvarn.wire.sessions import SessionNews


@dataclass(slots=True)
class EngineOutput:
    computed: bool = False
    deltas: list[TokenDelta] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Parts of one engine, as `kvarn.replica.server.build` makes them; all but two have a default."""

    executor: Executor
    config: EngineConfig
    _: KW_ONLY
    namespace: str = ""
    step_time: StepTimeModel = field(default_factory=StepTimeModel)
    proposer: Proposer | None = None
    """Guesses tokens to verify. It needs all known tokens: while guesses pay, one step at a time is planned."""
    speculation: SpeculationConfig | None = None  # number of guesses to verify
    masks: Callable[[Submit], TokenMask | None] | None = None
    """Mask of a request's tokens, None for one without. A request waits until its mask is ready."""
    connector: KVConnector | None = None  # keeps KV blocks beyond the device; the executor has the same
    adapters: AdapterStore | None = None
    """Adapters that requests may name, by digest; the executor has the same. None: any, and it takes no memory."""
    prefill_peer: PrefillPeer | None = None
    """Another engine that computes prompts; needs a connector."""
    disaggregation: DisaggregationConfig | None = None  # choice of the prompts that the peer computes
    micro_batches: int = 1
    """Groups of running sequences, of which several are in flight where the executor is a pipeline. With more than one
    no sequence is planned again before its token is known."""
    num_snapshots: int | None = None
    """Copies of recurrent states that the executor has room for; None: the model has no such states."""
    eviction: Callable[[Mapping[int, PrefixNode]], EvictionOrder] | None = None
    """Makes the order in which idle blocks go, from the nodes of cached ones; None: by their value."""
    step_log: StepLog = field(default_factory=StepLog)


class EngineCore:
    """The scheduling loop of one replica. Not thread-safe. `clock`: monotonic seconds; no other time is read."""

    def __init__(self, parts: EngineParts, clock: Callable[[], float]) -> None:
        executor, config, step_time, connector = parts.executor, parts.config, parts.step_time, parts.connector
        self._executor = executor
        self.forwarding = executor if isinstance(executor, ForwardingExecutor) else None
        self._clock = clock
        self._max_in_flight = executor.max_in_flight
        self._masks = parts.masks
        remote = None
        if parts.prefill_peer is not None:
            chosen = parts.disaggregation or DisaggregationConfig()
            remote = RemotePrefill(parts.prefill_peer, config, step_time, self._work, chosen)
        tiers = None if connector is None else KVTiers(connector, parts.namespace, step_time, remote)
        eviction = parts.eviction or partial(ByValue, seconds=RecomputeCosts(step_time, tiers).seconds)
        memory = KVCacheManager(
            executor.num_blocks,
            config.prefix_cache,
            parts.namespace,
            tiers,
            parts.adapters,
            parts.num_snapshots,
            eviction,
        )
        self.scheduler = Scheduler(config, memory, step_time, parts.proposer, parts.speculation, parts.micro_batches)
        self._max_context_length = executor.max_context_length
        self._admission = AdmissionControl(config, executor.num_blocks, executor.max_context_length)
        self._requests: dict[str, Request] = {}
        self._preparing: list[Request] = []
        self._masked: dict[str, Request] = {}
        self._num_arrived = 0
        self._recorder = StatsRecorder(self.scheduler)
        self.step_log = parts.step_log

    def _work(self) -> tuple[Collection[Sequence], WaitingQueue]:
        return self.scheduler.running, self.scheduler.queue

    def add(self, message: Submit, came_s: float | None = None) -> None:
        """Take a request; its tokens come out of later steps. `came_s`: when it came, where it has waited for its
        adapter since then. Raises `AdmissionError`: nothing of the request is kept."""
        try:
            if message.request_id in self._requests:
                raise AdmissionError(
                    RefusalReason.DUPLICATE_ID, f"a request {message.request_id!r} is running: choose another id"
                )
            adapter_blocks = self.scheduler.memory.adapters.num_blocks(message.adapter)
            retry_after = lambda: self._recorder.retry_after_s(self._admission.waiting_tokens)  # noqa: E731
            self._admission.check(message, adapter_blocks, retry_after)
        except AdmissionError as refusal:
            self._recorder.count_refusal(refusal.reason)
            raise
        account = self.scheduler.tenants.open(message.tenant, message.weight)
        self._num_arrived += 1
        mask = self._masks(message) if self._masks is not None else None
        now = self._clock()
        came_s = now if came_s is None else came_s
        turn = TurnRecorder(came_s, self.scheduler.waits, len(self.scheduler.queue))
        if came_s < now:
            turn.wait(Phase.WAIT_ADAPTER, came_s)
            turn.wait(None, now)
        request = Request(message, account, came_s, self._num_arrived, self._max_context_length, turn, mask)
        self._requests[request.request_id] = request
        self.step_log.accept(request)
        self._admission.enter(request)
        self.scheduler.memory.adapters.enter(request.scope.adapter)
        if mask is not None:
            self._masked[request.request_id] = request
        if mask is None or _is_usable(mask):
            self.scheduler.add(request)
        else:
            turn.wait(Phase.WAIT_MASK, now)
            self._preparing.append(request)

    def abort(self, request_id: str) -> None:
        """Forget a request; its blocks are free when this returns. Unknown ids are ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            self._withdraw(request)
            self._recorder.aborts += 1

    def abort_all(self) -> list[str]:
        aborted = list(self._requests)
        for request_id in aborted:
            self.abort(request_id)
        return aborted

    def retire_adapter(self, adapter: str) -> None:
        """Have an adapter's blocks freed once no request uses it."""
        self.scheduler.memory.adapters.retire(adapter)

    def keep_adapter(self, adapter: str) -> None:
        """Take a retirement back."""
        self.scheduler.memory.adapters.keep(adapter)

    def forget_tenant(self, tenant: str) -> None:
        """Delete a tenant's cached blocks, on every tier, and what guesses are made from."""
        self.scheduler.memory.forget(tenant)
        if self.scheduler.speculation is not None:
            self.scheduler.speculation.forget_tenant(tenant)

    def take_session_news(self, news: SessionNews) -> None:
        self.scheduler.memory.take_news(news, self._clock())

    def start_draining(self) -> None:
        self._admission.draining = True

    def has_work(self) -> bool:
        return bool(self._requests) or self.scheduler.num_in_flight > 0 or self.scheduler.memory.has_transfers

    def step(self) -> EngineOutput:
        """Refuse what has waited too long, keep the executor busy, take the result of the oldest step; raises as the
        executor."""
        now = self._clock()
        output = EngineOutput(refused=[*self._refuse_unmaskable(), *self._refuse_overdue(now)])
        self._start_prepared(now)
        while self.scheduler.num_in_flight < (1 if self.scheduler.needs_results else self._max_in_flight):
            if not self._submit_step(now):
                break
        if self.scheduler.num_in_flight:
            self._collect_step(output)
        else:
            self.step_log.idle()
        return output

    def _submit_step(self, now: float) -> bool:
        plan = self.scheduler.schedule(now)
        if plan is None:
            return False
        for request in self.scheduler.drain_started():
            self._admission.leave(request)
        self._executor.submit(plan)
        return True

    def _collect_step(self, output: EngineOutput) -> None:
        result = self._executor.collect()
        now = self._clock()
        update = self.scheduler.update(result, now)
        if update.step.shape.num_tokens:
            self._recorder.count_step(update.step.shape, result)
        self.step_log.add(update.step, update.drawn, now)
        output.computed, output.deltas = True, update.deltas
        if self._masked and (refused := self._refuse_unmaskable()):  # before any of them counts as finished
            gone = {each.request_id for each in refused}
            output.refused += refused
            output.deltas = [delta for delta in output.deltas if delta.request_id not in gone]
        for request in update.finished:
            if request.request_id in self._requests:
                self._forget(request, now)
                self._recorder.finished += 1

    # Many steps at once (`kvarn.engine.fast_forward`) ----------------------------------------------------------------

    @property
    def only_decodes(self) -> bool:
        """Whether the next steps only decode, as long as nothing comes and no answer ends."""
        return not self._preparing and not self._masked and self.scheduler.only_decodes

    @property
    def num_changes(self) -> tuple[int, int, int]:
        """Another one once a request has come or gone, or a step was made."""
        return self.scheduler.totals.steps, self._num_arrived, len(self._requests)

    @property
    def now(self) -> float:
        return self._clock()

    def advance(self, steps: DecodeSteps, tokens: list[list[int]]) -> None:
        """Take steps that have run, and whose sequences drew these tokens."""
        free_blocks = self.scheduler.advance(steps, tokens)
        self._recorder.count_decodes(len(tokens), steps.context, steps.elapsed_s)
        self.step_log.add_decodes(steps, free_blocks)

    @property
    def num_collected(self) -> int:
        return self.scheduler.totals.steps - self.scheduler.num_in_flight

    @property
    def stores_settle_after(self) -> int:
        """Number of the step with which all blocks published so far are stored."""
        planned = self.scheduler.totals.steps
        return planned + 1 if self.scheduler.memory.has_transfers else planned  # the next step carries the transfers

    @property
    def cache(self) -> PrefixCache:
        return self.scheduler.memory.cache

    @property
    def preparing(self) -> Collection[Request]:
        """Requests whose masks are not ready."""
        return self._preparing

    def stats(self) -> EngineStats:
        return self._recorder.stats(len(self._preparing))

    def stats_ahead(self, now: EngineStats, steps: DecodeSteps, begin: int, end: int, taken: int) -> EngineStats | None:
        """Statistics once a part of these steps is taken; see `StatsRecorder.stats_ahead`."""
        return self._recorder.stats_ahead(now, steps, begin, end, taken)

    def check_integrity(self) -> None:
        """Recount everything. Valid between steps; with nothing to do, nothing may be held. Raises `IntegrityError`."""
        self.scheduler.check_integrity()
        live = sum(
            1 for request in self._requests.values() for sequence in request.sequences if not sequence.finish_reason
        )
        if live != len(self.scheduler.running) + len(self.scheduler.queue) + len(self._preparing):
            raise IntegrityError(f"{live} sequences are unfinished, but others run or wait")
        memory = self.scheduler.memory
        adapters = (request.scope.adapter for request in self._requests.values())
        memory.adapters.check_requests(Counter(adapter for adapter in adapters if adapter))
        if not self._requests and self.scheduler.waits.num_counted:
            raise IntegrityError("no request is here, but some are counted as waiting or running")
        if not self._requests and memory.pool.num_held > memory.adapters.num_held:
            raise IntegrityError("no request is here, but blocks are held")

    def _refuse_overdue(self, now: float) -> list[Refused]:
        return [
            self._refuse(
                request,
                RefusalReason.QUEUE_TIMEOUT,
                f"waited {now - request.arrival_s:.0f} s without a free place: try again later",
            )
            for request in self._admission.overdue(now)
        ]

    def _refuse(self, request: Request, reason: RefusalReason, message: str) -> Refused:
        self._withdraw(request)
        self._recorder.count_refusal(reason)
        overdue = reason is RefusalReason.QUEUE_TIMEOUT
        retry_after_s = self._recorder.retry_after_s(self._admission.waiting_tokens) if overdue else None
        return Refused(request_id=request.request_id, reason=reason, message=message, retry_after_s=retry_after_s)

    def _start_prepared(self, now: float) -> None:
        if self._preparing:
            for request in [each for each in self._preparing if each.mask is not None and _is_usable(each.mask)]:
                self._preparing.remove(request)
                request.turn.wait(None, now)
                self.scheduler.add(request)

    def _refuse_unmaskable(self) -> list[Refused]:
        problems = [(each, each.mask.problem) for each in self._masked.values() if each.mask is not None]
        return [self._refuse(each, RefusalReason.INVALID, text) for each, text in problems if text is not None]

    def _withdraw(self, request: Request) -> None:
        if request in self._preparing:
            self._preparing.remove(request)
        else:
            self.scheduler.remove(request)
        self._forget(request, self._clock())

    def _forget(self, request: Request, now: float) -> None:
        self._masked.pop(request.request_id, None)
        del self._requests[request.request_id]
        self.step_log.end(request, now)
        request.turn.close()
        self.scheduler.end(request, now)
        self._admission.leave(request)
        self.scheduler.memory.adapters.leave(request.scope.adapter)
        self.scheduler.tenants.close(request.account)
        request.sequences.clear()  # they know their request: else they stay until garbage is collected


def _is_usable(mask: TokenMask) -> bool:
    return mask.ready and mask.problem is None
