"""A minimal HTTP server in front of an engine that has none: streaming `POST /v1/completions` with token-id prompts.

The engine runs in a thread of its own and takes jobs from an inbox; the event loop only carries tokens to sockets, so
that what is measured is the engine. Tokens are sent as their numbers: the engine is spared detokenization, which the
engines with servers of their own do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_HEAD = 64 * 1024
CHUNK = "{size:x}\r\n{data}\r\n"
ENGINE_FAILED = 70
"""Exit code of a server whose engine's thread has ended by an error."""


@dataclass
class Job:
    """One request as the engine sees it."""

    prompt: list[int]
    max_tokens: int
    emit: Callable[[Sequence[int], bool], None]
    """Hands on new tokens, and whether these were the last. May be called from the engine's thread."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """The client has gone."""


Inbox = queue.Queue[Job]
Engine = Callable[[Inbox], None]
"""Runs forever in a thread of its own: takes jobs, emits exactly `max_tokens` tokens for each that is not cancelled."""


class BadRequestError(ValueError):
    """The request is none that this server can serve."""


def serve(engine: Engine, port: int) -> None:
    """Run the engine and the server until SIGTERM. An engine that fails ends the process: nobody would answer."""
    inbox: Inbox = queue.Queue()

    def work() -> None:
        try:
            engine(inbox)
        except BaseException:
            traceback.print_exc()
            os._exit(ENGINE_FAILED)

    threading.Thread(target=work, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_listen(inbox, port))
    os._exit(0)  # the engine's thread may be inside a long native call


async def _listen(inbox: Inbox, port: int) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await exchange(reader, writer, inbox)
        writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", port, limit=MAX_HEAD)
    async with server:
        await stopped.wait()


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inbox: Inbox) -> None:
    """One request and its answer; a connection carries no more, so what comes after the request is the client's end."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    if head[0].split()[:2] != ["POST", "/v1/completions"]:
        await _whole(writer, 404, {"error": {"message": "only POST /v1/completions is served"}})
        return
    try:
        asked = read_request(body)
    except BadRequestError as error:
        await _whole(writer, 400, {"error": {"message": str(error)}})
        return
    await _answer(reader, writer, inbox, asked)


def read_request(body: bytes) -> dict[str, Any]:
    """The request's JSON, with a prompt of token ids and a number of tokens. Raises BadRequestError."""
    try:
        asked = json.loads(body)
    except ValueError as error:
        raise BadRequestError(f"the body is no JSON: {error}") from None
    prompt = asked.get("prompt") if isinstance(asked, dict) else None
    if not isinstance(prompt, list) or not prompt or not all(isinstance(token, int) for token in prompt):
        raise BadRequestError("prompt must be a list of token ids")
    if not isinstance(asked.get("max_tokens"), int) or asked["max_tokens"] < 1:
        raise BadRequestError("max_tokens must be a number of at least 1")
    return asked


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inbox: Inbox, asked: dict[str, Any]
) -> None:
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[tuple[Sequence[int], bool]] = asyncio.Queue()

    def emit(tokens: Sequence[int], last: bool) -> None:
        loop.call_soon_threadsafe(arrived.put_nowait, (tokens, last))

    job = Job(asked["prompt"], asked["max_tokens"], emit)
    inbox.put(job)
    gone = asyncio.ensure_future(reader.read())
    try:
        await _stream(writer, job, arrived, gone, streaming=bool(asked.get("stream")))
    finally:
        job.cancelled.set()
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await gone


async def _stream(
    writer: asyncio.StreamWriter,
    job: Job,
    arrived: asyncio.Queue[tuple[Sequence[int], bool]],
    gone: asyncio.Future[bytes],
    *,
    streaming: bool,
) -> None:
    count, last, texts = 0, False, []
    if streaming:
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
        writer.write((head + "Connection: close\r\n\r\n").encode())
    while not last:
        coming = asyncio.ensure_future(arrived.get())
        await asyncio.wait({coming, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not coming.done():
            coming.cancel()
            return
        tokens, last = coming.result()
        count += len(tokens)
        text = "".join(f" {token}" for token in tokens)
        choice = {"index": 0, "text": text, "finish_reason": "length" if last else None}
        if streaming:
            _event(writer, {"object": "text_completion", "choices": [choice]})
            await writer.drain()
        texts.append(text)
    usage = {"prompt_tokens": len(job.prompt), "completion_tokens": count, "total_tokens": len(job.prompt) + count}
    if not streaming:
        choice = {"index": 0, "text": "".join(texts), "finish_reason": "length"}
        await _whole(writer, 200, {"object": "text_completion", "choices": [choice], "usage": usage})
        return
    _event(writer, {"object": "text_completion", "choices": [], "usage": usage})
    _event(writer, "[DONE]")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _event(writer: asyncio.StreamWriter, content: dict[str, Any] | str) -> None:
    payload = content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))
    data = f"data: {payload}\n\n"
    writer.write(CHUNK.format(size=len(data), data=data).encode())


async def _whole(writer: asyncio.StreamWriter, status: int, content: dict[str, Any]) -> None:
    data = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nConnection: close\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
