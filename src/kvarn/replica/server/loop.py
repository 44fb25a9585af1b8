"""The engine's loop: read what came, make one step, send what it brought; wait when there is nothing to do."""

from __future__ import annotations

import logging

from kvarn.replica.server.embed import EmbedService
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.server.heartbeat import HeartbeatThread
from kvarn.replica.server.response_router import ResponseRouter
from kvarn.replica.server.transport import Inbox, UnreadableRequest
from kvarn.wire.messages import (
    Abort,
    Embed,
    Join,
    Leave,
    RefusalReason,
    Refused,
    StepOutput,
    Stop,
    Submit,
    ToEngine,
)

_IDLE_WAIT_S = 0.5
"""Longest wait for a message when idle: how late a signal to drain may be seen."""
_STALLED_WAIT_S = 0.005
"""Wait after a step that computed nothing although work is queued, so that the loop never spins."""

log = logging.getLogger(__name__)


class EngineLoop:
    """Joins a service to its clients until it is stopped or drained."""

    def __init__(
        self,
        service: GenerateService | EmbedService,
        inbox: Inbox,
        router: ResponseRouter,
        heartbeat: HeartbeatThread,
    ) -> None:
        self._service = service
        self._inbox = inbox
        self._router = router
        self._heartbeat = heartbeat
        self._stopped = False
        self._draining = False
        self._drain_requested = False
        self._stalled = False

    def request_drain(self) -> None:
        """Drain at the next turn of the loop. May be called from a signal handler."""
        self._drain_requested = True

    def run(self) -> None:
        """Turn until told to stop, or until drained. What the service raises passes through."""
        while not self._finished():
            changed = self._handle_messages()
            if self._service.has_work() and not self._stopped:
                self._step()
            elif changed:  # an abort or a refusal with no step after it: the gauges would stay as they were
                self._router.send(StepOutput(deltas=[], stats=self._service.stats()))

    def _finished(self) -> bool:
        if self._drain_requested and not self._draining:
            self._drain()
        return self._stopped or (self._draining and not self._service.has_work())

    def _handle_messages(self) -> bool:
        """Handle what came; returns whether anything did."""
        wait_s = _IDLE_WAIT_S
        if self._service.has_work():
            wait_s = _STALLED_WAIT_S if self._stalled else 0.0
        any_came = False
        for message in self._inbox.receive(wait_s):
            self._handle(message)
            any_came = True
        return any_came

    def _handle(self, message: ToEngine | UnreadableRequest) -> None:
        match message:
            case Submit() | Embed():
                self._accept(message)
            case Abort():
                if self._router.aborted(message.request_id, message.gateway):
                    self._service.abort(message.request_id)
            case Join():
                self._router.join(message)
            case Leave():
                for request_id in self._router.leave(message.gateway):
                    self._service.abort(request_id)
            case Stop():
                self._stopped = True
            case UnreadableRequest():
                reason = f"the engine cannot read this request: {message.problem}"
                refused = Refused(request_id=message.request_id, reason=RefusalReason.INVALID, message=reason)
                self._router.refuse(refused, message.gateway)

    def _accept(self, request: Submit | Embed) -> None:
        if not self._router.has_joined(request.gateway):
            return  # its process is gone: it was still under way
        refused = self._service.accept(request)
        if refused is None:
            self._router.accepted(request)
        else:
            self._router.refuse(refused, request.gateway)

    def _step(self) -> None:
        with self._heartbeat.in_step():
            responses = self._service.step()
        for response in responses:
            self._router.send(response)
        self._stalled = not responses

    def _drain(self) -> None:
        log.info("draining: new requests are refused, running ones finish")
        self._draining = True
        self._service.start_draining()
