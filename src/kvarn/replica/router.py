"""Which gateway process an engine answers: the one that asked. Statistics go to all."""

from __future__ import annotations

from dataclasses import dataclass

from kvarn.replica.link import EngineLink
from kvarn.wire.messages import Embed, Embedded, FromEngine, Join, Refused, StepOutput, Submit, TokenDelta

MAIN = 0
"""Number of the gateway process that started the engine; it hears all that is not an answer to another."""


@dataclass(slots=True)
class _Request:
    gateway: int
    open_choices: int


class AnswerRouter:
    """Sends answers over a link. Only requests of other processes than the main one are remembered."""

    def __init__(self, link: EngineLink) -> None:
        self._link = link
        self._requests: dict[str, _Request] = {}
        self._left: set[int] = set()

    def join(self, message: Join) -> None:
        """Answer one more gateway process, unless it is known to be gone: its message was still under way."""
        if message.gateway not in self._left:
            self._link.connect(message.gateway, message.address)

    def leave(self, gateway: int) -> list[str]:
        """Forget a gateway process that is gone; returns the ids of its requests."""
        self._left.add(gateway)
        self._link.disconnect(gateway)
        ids = [request_id for request_id, request in self._requests.items() if request.gateway == gateway]
        for request_id in ids:
            del self._requests[request_id]
        return ids

    def knows(self, gateway: int) -> bool:
        """Whether a gateway process has joined and is not known to be gone."""
        return gateway in self._link.gateways

    def accepted(self, request: Submit | Embed) -> None:
        """Remember whom to answer."""
        if request.gateway != MAIN:
            choices = request.sampling.n if isinstance(request, Submit) else 1
            self._requests[request.request_id] = _Request(request.gateway, choices)

    def aborted(self, request_id: str, gateway: int) -> bool:
        """Forget a request; False where it is another process's, whose request has the same id."""
        if self._owner(request_id) != gateway:
            return False
        self._requests.pop(request_id, None)
        return True

    def send(self, message: FromEngine, gateway: int | None = None) -> None:
        """Send a message to whom it is for; `gateway` names the receiver of what answers no accepted request."""
        match message:
            case StepOutput():
                self._send_output(message)
            case Refused() | Embedded():
                owner = self._owner(message.request_id) if gateway is None else gateway
                if gateway is None:
                    self._requests.pop(message.request_id, None)
                self._link.send(message, owner)
            case _:
                self._link.send(message)

    def _send_output(self, output: StepOutput) -> None:
        gateways = self._link.gateways
        if len(gateways) == 1:
            self._link.send(output)
            return
        deltas: dict[int, list[TokenDelta]] = {gateway: [] for gateway in gateways}
        for delta in output.deltas:
            deltas[self._owner(delta.request_id)].append(delta)
            if delta.finish_reason is not None:
                self._choice_ended(delta.request_id)
        for gateway, own in deltas.items():
            if own or output.stats is not None:
                self._link.send(StepOutput(deltas=own, stats=output.stats), gateway)

    def _owner(self, request_id: str) -> int:
        request = self._requests.get(request_id)
        return MAIN if request is None else request.gateway

    def _choice_ended(self, request_id: str) -> None:
        request = self._requests.get(request_id)
        if request is not None:
            request.open_choices -= 1
            if not request.open_choices:
                del self._requests[request_id]
