"""The stream of a response as a client gets it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from kvarn.responses.ending import ResponseEnding
from kvarn.responses.events import is_end
from kvarn.serving.errors import to_api_error
from kvarn.wire.openai.responses.answer import Response, StreamEvent
from kvarn.wire.sse import named_event


class ResponseStream:
    """Encodes events as server-sent events.

    Args:
        batches: The events, as they come.
        ending: Of the response that is made for this stream.
    """

    def __init__(self, batches: AsyncGenerator[list[StreamEvent], None], ending: ResponseEnding | None = None) -> None:
        self._batches = batches
        self._ending = ending
        self._next = 0
        self._has_end = False

    async def encoded(self) -> AsyncGenerator[bytes, None]:
        """The events' bytes; closing this closes the events."""
        async with aclosing(self._batches) as batches:
            async for batch in batches:
                if batch:
                    yield self._encode(batch)

    def error_event(self, error: Exception) -> bytes:
        """Why a stream ends before its end. The end that the response has by then is sent first; where that is no
        failure, there is no error event."""
        last = self._encode(self._ending.take_last_events()) if self._ending is not None else b""
        if self._has_end:
            return last
        api_error = to_api_error(error)
        number = self._next
        code, message, param = api_error.code, api_error.message, api_error.param
        return last + named_event(
            "error", StreamEvent(type="error", sequence_number=number, code=code, message=message, param=param)
        )

    def _encode(self, batch: Sequence[StreamEvent]) -> bytes:
        for event in batch:
            self._next = event.sequence_number + 1
            self._has_end = is_end(event) and isinstance(event.response, Response) and event.response.status != "failed"
        return b"".join(named_event(event.type, event) for event in batch)
