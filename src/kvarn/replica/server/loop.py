"""The engine's loop: read what came, make one step, send what it brought; wait when there is nothing to do. Beside it,
who is answered."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from kvarn.clock import SYSTEM_CLOCK
from kvarn.replica.endpoint import CurveKeys
from kvarn.replica.server.block_events import BlockEventPublisher
from kvarn.replica.server.embed import EmbedService
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.server.heartbeat import HeartbeatThread
from kvarn.replica.transport import (
    CLIENT_LINGER_MS,
    SUPERVISOR_LINGER_MS,
    Context,
    Inbox,
    Outbox,
    UnreadableRequest,
    engine_outbox_keys,
)
from kvarn.wire.block_events import BlockEvents, WatchBlocks
from kvarn.wire.messages import (
    OWN_PROCESS,
    Abort,
    AdapterChanged,
    Adapters,
    Embed,
    Embedded,
    ForgetTenant,
    Join,
    Leave,
    LoadAdapter,
    Ready,
    RefusalReason,
    Refused,
    StepOutput,
    Stop,
    Submit,
    ToEngine,
    TokenDelta,
    UnloadAdapter,
)
from kvarn.wire.questions import Ask, EngineAnswer
from kvarn.wire.sessions import SessionNews
from kvarn.wire.supervision import ON_THEIR_WAY_S, Drain, Sleep, Supervise

_IDLE_WAIT_S = 0.5
"""Longest wait for a message when idle: how late a signal to drain may be seen."""
_STALLED_WAIT_S = 0.005
"""Wait after a step that computed nothing although work is queued, so that the loop never spins."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Request:
    gateway: int
    open_choices: int


class ResponseRouter:
    """Knows the gateway processes that have joined, by number, and whose each running request is."""

    def __init__(self, context: Context, supervisor: str, keys: CurveKeys | None = None) -> None:
        self._context = context
        self._keys = keys
        self.supervisor = self._outbox(supervisor, SUPERVISOR_LINGER_MS)  # to the supervisor
        self._outboxes: dict[int, Outbox] = {}
        self._requests: dict[str, _Request] = {}
        self._gone: set[int] = set()

    def join(self, message: Join) -> list[str]:
        """Answer one more gateway process, unless it is known to be gone: its message was still under way. Returns the
        ids of its requests: one that joins again has lost them."""
        if message.gateway in self._gone:
            return []
        ids = self._forget(message.gateway)
        self._outboxes[message.gateway] = self._outbox(message.address, CLIENT_LINGER_MS)
        return ids

    def leave(self, gateway: int) -> list[str]:
        """Forget a gateway process that is gone; returns the ids of its requests. Idempotent."""
        if gateway in self._gone:
            return []
        self._gone.add(gateway)
        return self._forget(gateway)

    def _forget(self, gateway: int) -> list[str]:
        self._disconnect(gateway)
        ids = [request_id for request_id, request in self._requests.items() if request.gateway == gateway]
        for request_id in ids:
            del self._requests[request_id]
        return ids

    @property
    def joined(self) -> Collection[int]:
        return self._outboxes.keys()

    def supervised_by(self, address: str) -> None:
        """Another main gateway process has become the supervisor, and numbers its processes anew."""
        self.supervisor.close(drop=True)
        self.supervisor = self._outbox(address, SUPERVISOR_LINGER_MS)
        self._gone.clear()

    def accepted(self, request: Submit | Embed | LoadAdapter | UnloadAdapter) -> None:
        choices = len(request.choices) if isinstance(request, Submit) else 1
        self._requests[request.request_id] = _Request(request.gateway, choices)

    def aborted(self, request_id: str, gateway: int) -> bool:
        """Forget a request; False where it is not this process's: it has ended, or another's has the same id."""
        request = self._requests.get(request_id)
        if request is None or request.gateway != gateway:
            return False
        del self._requests[request_id]
        return True

    def refuse(self, refused: Refused, gateway: int) -> None:
        """Answer a request that was not accepted, unless its process is gone."""
        if gateway in self._outboxes:
            self._outboxes[gateway].send(refused)

    def tell(self, gateway: int, message: Adapters | BlockEvents | StepOutput | EngineAnswer) -> bool:
        """Send to one gateway process; False: it has not joined or is gone, and nothing was sent."""
        if gateway not in self._outboxes:
            return False
        self._outboxes[gateway].send(message)
        return True

    def send(self, message: StepOutput | Refused | Embedded | AdapterChanged | Adapters) -> None:
        """Send a step's output, what all hear, or the last answer to an accepted request."""
        if isinstance(message, StepOutput):
            self._send_output(message)
        elif isinstance(message, Adapters):
            for outbox in self._outboxes.values():
                outbox.send(message)
        elif (request := self._requests.pop(message.request_id, None)) is not None:
            self._outboxes[request.gateway].send(message)

    def disconnect_all(self) -> None:
        """Send what is queued, and forget all gateway processes: they join again what takes requests again."""
        for outbox in self._outboxes.values():
            outbox.close()
        self._outboxes.clear()
        self._requests.clear()

    def close(self) -> None:
        self.disconnect_all()
        self.supervisor.close()

    def _send_output(self, output: StepOutput) -> None:
        outputs: dict[int, list[TokenDelta]] = {gateway: [] for gateway in self._outboxes}
        for delta in output.deltas:
            request = self._requests.get(delta.request_id)
            if request is None:
                continue  # aborted while its step ran
            outputs[request.gateway].append(delta)
            if delta.finish_reason is not None:
                request.open_choices -= 1
                if not request.open_choices:
                    del self._requests[delta.request_id]
        for gateway, deltas in outputs.items():
            if deltas or output.stats is not None:
                self._outboxes[gateway].send(StepOutput(deltas=deltas, stats=output.stats))

    def _outbox(self, address: str, linger_ms: int) -> Outbox:
        return Outbox(self._context, address, linger_ms, engine_outbox_keys(self._keys))

    def _disconnect(self, gateway: int) -> None:
        outbox = self._outboxes.pop(gateway, None)
        if outbox is not None:
            outbox.close(drop=True)


class EngineLoop:
    """Joins a service to its clients until it is stopped or drained."""

    def __init__(
        self,
        service: GenerateService | EmbedService,
        inbox: Inbox,
        router: ResponseRouter,
        heartbeat: HeartbeatThread,
        ready: Ready,
    ) -> None:
        self._service = service
        self._ready = ready
        self._owes_ready = False
        """The supervisor does not know that the engine is ready."""
        self._inbox = inbox
        self._router = router
        self._heartbeat = heartbeat
        self._blocks = BlockEventPublisher(service.block_places, router.tell)
        self.sleeps = False  # whether it ended to sleep
        self._stopped = False
        self._draining = False
        self._drain_requested = False
        self._drain_at: float | None = None
        self._stalled = False
        self._questions: deque[Ask] = deque()

    def request_drain(self) -> None:
        self._drain_requested = self._heartbeat.draining = True
        self.sleeps = False

    def run(self) -> None:
        """Turn until told to stop, or until drained or asleep. What the service raises passes through."""
        while not self._finished():
            changed = self._handle_messages()
            if self._questions:  # one between two steps: those who ask wait rather than the requests
                self._answer(self._questions.popleft())
            if self._service.has_work() and not self._stopped:
                self._step()
            elif changed:  # an abort or a refusal with no step after it: the gauges would stay as they were
                self._router.send(StepOutput(deltas=[], stats=self._service.stats()))
                self._blocks.send_due(idle=True)

    def _finished(self) -> bool:
        is_due = self._drain_at is not None and SYSTEM_CLOCK.now() >= self._drain_at
        if (self._drain_requested or is_due) and not self._draining:
            self._drain()
        return self._stopped or (self._draining and not self._service.has_work())

    def _handle_messages(self) -> bool:
        wait_s = _IDLE_WAIT_S
        if self._questions:
            wait_s = 0.0
        elif self._service.has_work():
            wait_s = _STALLED_WAIT_S if self._stalled else 0.0
        any_came = False
        for message in self._inbox.receive(wait_s):
            self._handle(message)
            any_came = any_came or not isinstance(message, Ask)  # a question changes nothing
        if self._owes_ready:
            self._owes_ready = False
            if not self._heartbeat.draining:
                self._router.supervisor.send(self._ready)
        return any_came

    def _handle(self, message: ToEngine | UnreadableRequest) -> None:
        match message:
            case Submit() | Embed() | LoadAdapter() | UnloadAdapter():
                self._accept(message)
            case Abort():
                if self._router.aborted(message.request_id, message.gateway):
                    self._service.abort(message.request_id)
            case Join():
                for request_id in self._router.join(message):
                    self._service.abort(request_id)
                self._router.tell(message.gateway, StepOutput(deltas=[], stats=self._service.stats()))
                told = self._service.join(message)
                if told is not None:
                    self._router.tell(message.gateway, told)
            case WatchBlocks():
                if message.gateway in self._router.joined:
                    self._blocks.subscribe(message.gateway, wanted=message.wanted)
            case Leave():
                for gateway in message.gateways:
                    self._forget(gateway)
            case Ask():
                self._questions.append(message)
            case SessionNews():
                self._service.take_session_news(message)
            case ForgetTenant():
                self._service.forget_tenant(message.tenant)
            case Supervise():
                if self._heartbeat.heard(message.address):
                    self._change_supervisor(message.address)
                self._owes_ready = message.knows != "ready"
            case Drain():
                self._heartbeat.draining, self.sleeps = True, False
                self._drain_at = self._drain_at or SYSTEM_CLOCK.now() + ON_THEIR_WAY_S
            case Sleep():
                self.sleeps = True
                self._drain_at = self._drain_at or SYSTEM_CLOCK.now() + ON_THEIR_WAY_S
            case Stop():
                self._stopped, self.sleeps = True, False
            case UnreadableRequest():
                reason = f"the engine cannot read this request: {message.problem}"
                refused = Refused(request_id=message.request_id, reason=RefusalReason.INVALID, message=reason)
                self._router.refuse(refused, message.gateway)

    def _answer(self, ask: Ask) -> None:
        if ask.gateway in self._router.joined:
            answer = self._service.answer(ask.question)
            self._router.tell(ask.gateway, EngineAnswer(number=ask.number, answer=answer))

    def _accept(self, request: Submit | Embed | LoadAdapter | UnloadAdapter) -> None:
        if request.gateway not in self._router.joined:
            return  # its process is gone: it was still under way
        if isinstance(request, LoadAdapter | UnloadAdapter):
            refused = self._service.change_adapters(request)
        else:
            refused = self._service.accept(request)
        if refused is None:
            self._router.accepted(request)
        else:
            self._router.refuse(refused, request.gateway)

    def _change_supervisor(self, address: str) -> None:
        """Another main gateway process watches from now on; those of the earlier one are gone. That an engine drains is
        heard from its heartbeats."""
        for gateway in list(self._router.joined):
            if gateway != OWN_PROCESS:
                self._forget(gateway)
        self._router.supervised_by(address)

    def _forget(self, gateway: int) -> None:
        self._blocks.subscribe(gateway, wanted=False)
        for request_id in self._router.leave(gateway):
            self._service.abort(request_id)

    def _step(self) -> None:
        with self._heartbeat.in_step():
            responses = self._service.step()
        for response in responses:
            self._router.send(response)
        self._blocks.send_due(idle=not self._service.has_work())
        self._stalled = not responses

    def _drain(self) -> None:
        log.info("draining: new requests are refused, running ones finish")
        self._draining = True
        self._service.start_draining()
