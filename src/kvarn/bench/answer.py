"""One request to the server: send it, stamp its chunks, keep its record."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from kvarn.bench.http import HttpBrokenError, HttpClient, HttpConnectError, HttpProtocolError
from kvarn.bench.records import Chunk, ErrorKind, Record, keep_chunks
from kvarn.bench.target import Target
from kvarn.clock import SYSTEM_CLOCK
from kvarn.traffic.workload import BenchRequest

MAX_ERROR_BODY = 4096
"""Bytes of an error response that are kept for its message."""


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


class AnswerStream:
    """Reads a response's body as it comes: server-sent events of completions or chat completions."""

    def __init__(self, start: float) -> None:
        self._start = start
        self._decoder = msgspec.json.Decoder(_Event)
        self._rest = b""
        self._latest = start
        self._refusal = b""
        self.chunks: list[Chunk] = []
        self.usage: _Usage | None = None
        self.error: tuple[ErrorKind, str] | None = None
        self.finished = False
        """A `finish_reason` or `[DONE]` was seen."""

    def feed(self, now: float, status: int, body: bytes) -> None:
        """Take a piece of the body that came at `now` (`Clock.now`)."""
        if status != 200:
            self._refusal = (self._refusal + body)[:MAX_ERROR_BODY]
            return
        self._latest = now
        lines = (self._rest + body).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(now - self._start, line[5:].strip())

    def close(self) -> None:
        """The body has ended: take a last line that no newline closed."""
        if self._rest:
            self.feed(self._latest, 200, b"\n")

    def refusal(self) -> str:
        try:
            read = msgspec.json.decode(self._refusal)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._refusal.decode(errors="replace").strip()[:300]
        return _error_message(read.get("error", read) if isinstance(read, dict) else read)

    def _event(self, now: float, data: bytes) -> None:
        if data == b"[DONE]":
            self.finished = True
            return
        try:
            event = self._decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self.error = self.error or (ErrorKind.BAD_RESPONSE, f"an event cannot be read: {error}")
            return
        if event.error is not None:
            self.error = self.error or (ErrorKind.ERROR_IN_STREAM, _error_message(event.error))
        if event.usage is not None:
            self.usage = event.usage
        for choice in event.choices or ():
            self._choice(now, choice)

    def _choice(self, now: float, choice: _Choice) -> None:
        characters = _characters(choice)
        closing = choice.finish_reason is not None
        if closing:
            self.finished = True
            if choice.finish_reason in ("abort", "error"):
                self.error = self.error or (ErrorKind.ERROR_IN_STREAM, f"finish_reason is {choice.finish_reason!r}")
        greeting = choice.delta is not None and choice.delta.role is not None
        if characters or closing or not greeting:
            self.chunks.append(Chunk(now, characters, closing and not characters))


async def ask(
    client: HttpClient, target: Target, request: BenchRequest, body: bytes, start: float, due: float
) -> Record:
    """Send `body` and wait for the whole answer. Failures are kept in the record, never raised.

    `start` is the `Clock.now` of the run's zero, `due` the request's scheduled second after it.
    """
    record = Record(
        index=request.index,
        scheduled_s=due,
        sent_s=SYSTEM_CLOCK.now() - start,
        asked_output_tokens=request.output_tokens,
    )
    stream = AnswerStream(start)
    try:
        async with asyncio.timeout(target.timeout_s):
            status = await client.request("POST", target.path, body, stream.feed, request.session)
    except TimeoutError:
        record.error, record.message = ErrorKind.TIMEOUT, f"no end within {target.timeout_s:g} s"
    except HttpConnectError as error:
        record.error, record.message = ErrorKind.CONNECT, str(error)
    except HttpBrokenError as error:
        record.error, record.message = ErrorKind.BROKEN_STREAM, str(error)
    except HttpProtocolError as error:
        record.error, record.message = ErrorKind.BAD_RESPONSE, str(error)
    else:
        _judge(record, stream, status)
    record.end_s = SYSTEM_CLOCK.now() - start
    return record


def _judge(record: Record, stream: AnswerStream, status: int) -> None:
    if status != 200:
        record.error, record.message = f"http_{status}", stream.refusal()
        return
    stream.close()
    if stream.usage is not None:
        record.prompt_tokens = stream.usage.prompt_tokens
        record.output_tokens = stream.usage.completion_tokens
        details = stream.usage.prompt_tokens_details
        record.cached_tokens = details.cached_tokens if details else None
    if stream.error is not None:
        record.error, record.message = stream.error
    elif not stream.chunks and not stream.finished:
        record.error, record.message = ErrorKind.BAD_RESPONSE, "the answer holds no server-sent events"
    elif not stream.finished:
        record.error, record.message = ErrorKind.BROKEN_STREAM, "the stream ended without finish_reason or [DONE]"
    elif stream.usage is None:
        record.error = ErrorKind.NO_USAGE
        record.message = "no usage in the stream: the server ignores stream_options.include_usage"
    elif not stream.chunks or record.output_tokens < 1:
        record.error, record.message = ErrorKind.NO_TOKENS, "the answer is empty"
    else:
        keep_chunks(record, stream.chunks)


def _characters(choice: _Choice) -> int:
    delta = choice.delta
    if delta is None:
        return len(choice.text or "")
    said = len(delta.content or "") + len(delta.reasoning_content or delta.reasoning or "")
    return said + (len(str(delta.tool_calls)) if delta.tool_calls else 0)


def _error_message(error: object) -> str:
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"])[:300]
    return str(error)[:300]
