"""The requests in flight on one replica, by id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kvarn.replica.api import ReplicaLostError, RequestRefusedError
from kvarn.replica.stream import Hold, RequestStream
from kvarn.wire.messages import Embedded, RefusalReason, Refused, StepOutput


class InFlight:
    """Hands what comes from the engine to whoever waits for it. Messages about unknown ids are ignored: their
    request was aborted while they were under way.

    Args:
        abort: Tells the engine to forget a request.
    """

    def __init__(self, abort: Callable[[str], None]) -> None:
        self._abort = abort
        self._streams: dict[str, RequestStream] = {}
        self._answers: dict[str, asyncio.Future[list[bytes]]] = {}

    def __len__(self) -> int:
        return len(self._streams) + len(self._answers)

    def open_stream(self, request_id: str, choices: int, hold: Hold | None) -> RequestStream:
        """A stream for a request with so many choices; `hold` counts what waits in it.

        Raises:
            RequestRefusedError: A request of that id is in flight.
        """
        self._check_new(request_id)
        stream = self._streams[request_id] = RequestStream(choices, hold)
        return stream

    def open_answer(self, request_id: str) -> asyncio.Future[list[bytes]]:
        """A future for the vectors of an embedding request. Raises as `open_stream` does."""
        self._check_new(request_id)
        answer = self._answers[request_id] = asyncio.get_running_loop().create_future()
        return answer

    def close(self, request_id: str) -> None:
        """Forget a request, and drop what its consumer has not taken."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.close()
        self._answers.pop(request_id, None)

    def handle(self, message: StepOutput | Embedded | Refused) -> None:
        """Hand over what the engine answered."""
        match message:
            case StepOutput():
                for delta in message.deltas:
                    stream = self._streams.get(delta.request_id)
                    if stream is not None and not stream.put(delta):
                        self._abort(delta.request_id)
            case Embedded():
                answer = self._answers.get(message.request_id)
                if answer is not None and not answer.done():
                    answer.set_result(message.vectors)
            case Refused():
                error = RequestRefusedError(message.reason, message.message, message.retry_after_s)
                self._fail(message.request_id, error)

    def fail_all(self, reason: str) -> None:
        """Fail every request: the engine is gone."""
        for request_id in [*self._streams, *self._answers]:
            self._fail(request_id, ReplicaLostError(reason))

    def _fail(self, request_id: str, error: Exception) -> None:
        stream, answer = self._streams.get(request_id), self._answers.get(request_id)
        if stream is not None:
            stream.fail(error)
        if answer is not None and not answer.done():
            answer.set_exception(error)

    def _check_new(self, request_id: str) -> None:
        if request_id in self._streams or request_id in self._answers:
            raise RequestRefusedError(RefusalReason.DUPLICATE_ID, f"a request with the id {request_id!r} is running")
