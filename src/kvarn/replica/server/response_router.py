"""Sends each answer to the gateway process that sent the request, and statistics to all."""

from __future__ import annotations

from dataclasses import dataclass

import zmq

from kvarn.replica.server.transport import CLIENT_LINGER_MS, Outbox
from kvarn.wire.messages import Embed, Embedded, Join, Refused, StepOutput, Submit, TokenDelta


@dataclass(slots=True)
class _Request:
    gateway: int
    open_choices: int


class ResponseRouter:
    """Knows the gateway processes that have joined, by number, and whose each running request is."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._context = context
        self._outboxes: dict[int, Outbox] = {}
        self._requests: dict[str, _Request] = {}
        self._gone: set[int] = set()

    def join(self, message: Join) -> None:
        """Answer one more gateway process, unless it is known to be gone: its message was still under way."""
        if message.gateway not in self._gone:
            self._disconnect(message.gateway)
            self._outboxes[message.gateway] = Outbox(self._context, message.address, CLIENT_LINGER_MS)

    def leave(self, gateway: int) -> list[str]:
        """Forget a gateway process that is gone; returns the ids of its requests."""
        self._gone.add(gateway)
        self._disconnect(gateway)
        ids = [request_id for request_id, request in self._requests.items() if request.gateway == gateway]
        for request_id in ids:
            del self._requests[request_id]
        return ids

    def has_joined(self, gateway: int) -> bool:
        """Whether a gateway process has joined and is not known to be gone."""
        return gateway in self._outboxes

    def accepted(self, request: Submit | Embed) -> None:
        """Remember whom to answer."""
        choices = request.sampling.n if isinstance(request, Submit) else 1
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

    def send(self, message: StepOutput | Refused | Embedded) -> None:
        """Send a step's output, or the last answer to an accepted request."""
        if isinstance(message, StepOutput):
            self._send_output(message)
        elif (request := self._requests.pop(message.request_id, None)) is not None:
            self._outboxes[request.gateway].send(message)

    def close(self) -> None:
        """Send what is queued, then close."""
        for outbox in self._outboxes.values():
            outbox.close()

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

    def _disconnect(self, gateway: int) -> None:
        """Nobody reads what is queued for it."""
        outbox = self._outboxes.pop(gateway, None)
        if outbox is not None:
            outbox.close(drop=True)
