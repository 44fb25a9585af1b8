"""The engine's loop: read what came, make one step, send what it brought; wait when there is nothing to do."""

from __future__ import annotations

import logging
from typing import Protocol

from kvarn.replica.link import EngineLink
from kvarn.replica.router import AnswerRouter
from kvarn.replica.service import Service
from kvarn.wire.messages import Abort, Drain, Embed, Join, Leave, StepOutput, Stop, Submit, ToEngine

_IDLE_WAIT_S = 0.5
"""Longest wait for a message when idle: how late a signal to drain may be seen."""
_STALLED_WAIT_S = 0.005
"""Wait after a step that computed nothing although work is queued, so that the loop never spins."""

log = logging.getLogger(__name__)


class StepMarks(Protocol):
    """Told where the loop is; see `Pulse`."""

    def step_began(self) -> None:
        """The loop enters a step."""
        ...

    def step_ended(self) -> None:
        """The loop left a step."""
        ...


class EngineLoop:
    """Joins a service to its link until it is stopped or drained."""

    def __init__(self, service: Service, link: EngineLink, marks: StepMarks) -> None:
        self._service = service
        self._link = link
        self._router = AnswerRouter(link)
        self._marks = marks
        self._stopped = False
        self._draining = False
        self._drain_asked = False
        self._stalled = False

    def ask_to_drain(self) -> None:
        """Drain at the next turn of the loop. May be called from a signal handler."""
        self._drain_asked = True

    def run(self) -> None:
        """Turn until told to stop, or until drained. What the service raises passes through."""
        self._send_gauges()
        while not self._finished():
            changed = self._take_messages()
            if self._service.has_work() and not self._stopped:
                self._step()
            elif changed:  # an abort or a refusal with no step after it: the gauges would stay as they were
                self._send_gauges()

    def _send_gauges(self) -> None:
        self._router.send(StepOutput(deltas=[], stats=self._service.stats()))

    def _finished(self) -> bool:
        if self._drain_asked:
            self._drain()
        return self._stopped or (self._draining and not self._service.has_work())

    def _take_messages(self) -> bool:
        """Handle what came; returns whether anything did."""
        wait_s = _IDLE_WAIT_S
        if self._service.has_work():
            wait_s = _STALLED_WAIT_S if self._stalled else 0.0
        messages = list(self._link.receive(wait_s))
        for message in messages:
            self._handle(message)
        return bool(messages)

    def _handle(self, message: ToEngine) -> None:
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
            case Drain():
                self._drain()
            case Stop():
                self._stopped = True

    def _accept(self, request: Submit | Embed) -> None:
        if not self._router.knows(request.gateway):
            return  # its process is gone: it was still under way
        refused = self._service.accept(request)
        if refused is None:
            self._router.accepted(request)
        else:
            self._router.send(refused, request.gateway)

    def _step(self) -> None:
        self._marks.step_began()
        try:
            outputs = self._service.step()
        finally:
            self._marks.step_ended()
        for output in outputs:
            self._router.send(output)
        self._stalled = not outputs

    def _drain(self) -> None:
        self._drain_asked = False
        if not self._draining:
            log.info("draining: new requests are refused, running ones finish")
            self._draining = True
            self._service.start_draining()
