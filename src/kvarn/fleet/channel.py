"""Calls between the main gateway process and another, over a pair of sockets; both may call."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import msgspec

_LENGTH_BYTES = 4
_log = logging.getLogger(__name__)

Handler = Callable[[bytes], bytes | Awaitable[bytes] | None]
"""Answers a call. A result that is not awaited is computed at once, in the order of the calls."""


class ChannelClosedError(Exception):
    """The other process is gone."""


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    number: int
    """Number of a call and of its answer; 0: no answer is expected."""
    method: str
    """Empty: this is an answer."""
    body: bytes
    failed: bool = False


class Channel:
    """One end. Frames are MessagePack with their length in front; bodies are the callers' matter.

    Args:
        reader: From the other end.
        writer: To it.
        handlers: By the name of the method that the other end may call.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handlers: Mapping[str, Handler]
    ) -> None:
        self._writer = writer
        self._handlers = handlers
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._encoder = msgspec.msgpack.Encoder()
        self.closed = asyncio.Event()
        """Set once the other process is gone."""
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def open(cls, end: socket.socket, handlers: Mapping[str, Handler]) -> Channel:
        """A channel over one of a pair of connected sockets, which it takes over."""
        return cls(*await asyncio.open_unix_connection(sock=end), handlers)

    async def call(self, method: str, body: bytes = b"") -> bytes:
        """Call the other process and wait for its answer. Raises `ChannelClosedError` where it is gone or could not
        answer."""
        return await self.begin(method, body)

    def begin(self, method: str, body: bytes = b"") -> asyncio.Future[bytes]:
        """Call the other process; the call has been sent when this returns."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._waiting.pop(number, None))
        if self.closed.is_set():
            answer.set_exception(ChannelClosedError("the other process is gone"))
        else:
            self._write(_Frame(number, method, body))
        return answer

    def send(self, method: str, body: bytes = b"") -> None:
        """Call without an answer; dropped where the other process is gone."""
        if not self.closed.is_set():
            self._write(_Frame(0, method, body))

    def close(self) -> None:
        self._writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Handle frames until the other process is gone; then fail waiting calls."""
        decoder = msgspec.msgpack.Decoder(_Frame)
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "little")
                self._handle(decoder.decode(await reader.readexactly(size)))
        self.closed.set()
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_exception(ChannelClosedError("the other process is gone"))

    def _handle(self, frame: _Frame) -> None:
        if not frame.method:
            answer = self._waiting.get(frame.number)
            if answer is not None and not answer.done():
                if frame.failed:
                    answer.set_exception(ChannelClosedError(frame.body.decode()))
                else:
                    answer.set_result(frame.body)
            return
        try:
            result = self._handlers[frame.method](frame.body)
        except Exception as error:
            self._fail(frame, error)
            return
        if result is None or isinstance(result, bytes):
            self._answer(frame, result or b"")
        else:
            task = asyncio.ensure_future(self._answer_later(frame, result))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer_later(self, frame: _Frame, result: Awaitable[bytes]) -> None:
        try:
            self._answer(frame, await result)
        except Exception as error:
            self._fail(frame, error)

    def _answer(self, frame: _Frame, body: bytes) -> None:
        if frame.number and not self.closed.is_set():
            self._write(_Frame(frame.number, "", body))

    def _fail(self, frame: _Frame, error: Exception) -> None:
        _log.error("a call of another gateway process failed: %s", frame.method, exc_info=error)
        if frame.number and not self.closed.is_set():
            self._write(_Frame(frame.number, "", repr(error).encode(), failed=True))

    def _write(self, frame: _Frame) -> None:
        payload = self._encoder.encode(frame)
        self._writer.write(len(payload).to_bytes(_LENGTH_BYTES, "little") + payload)
