"""A minimal HTTP server before an engine that has none: streaming `POST /v1/completions` with token-id prompts.

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

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
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


def serve(engine: Callable[[Inbox], None], port: int) -> None:
    """Run the engine and the server until SIGTERM. An engine that fails ends the process: nobody would answer.

    `engine` runs forever in a thread: it takes jobs and emits exactly `max_tokens` tokens for each not cancelled.
    """
    inbox: Inbox = queue.Queue()

    def work() -> None:
        try:
            engine(inbox)
        except BaseException:
            traceback.print_exc()
            os._exit(ENGINE_FAILED)

    threading.Thread(target=work, daemon=True).start()
    asyncio.run(_listen(inbox, port))
    os._exit(0)  # the engine's thread may be inside a long native call


async def _listen(inbox: Inbox, port: int) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await _answer(reader, writer, inbox)
        writer.close()

    async with await asyncio.start_server(connection, "127.0.0.1", port):
        await stopped.wait()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inbox: Inbox) -> None:
    """One request and its answer; a connection carries no more, so that its end means a client that has gone."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    size = next(int(line.partition(":")[2]) for line in head if line.startswith("content-length:"))
    asked = json.loads(await reader.readexactly(size))
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[tuple[Sequence[int], bool] | None] = asyncio.Queue()
    job = Job(asked["prompt"], asked["max_tokens"], lambda *new: loop.call_soon_threadsafe(arrived.put_nowait, new))
    inbox.put(job)
    gone = asyncio.ensure_future(reader.read())
    gone.add_done_callback(lambda _: arrived.put_nowait(None))
    writer.write(HEAD)
    try:
        while (new := await arrived.get()) is not None:
            tokens, last = new
            text = "".join(f" {token}" for token in tokens)
            choice = {"index": 0, "text": text, "finish_reason": "length" if last else None}
            _event(writer, json.dumps({"object": "text_completion", "choices": [choice]}))
            if last:
                count = len(job.prompt)
                usage = {"prompt_tokens": count, "completion_tokens": job.max_tokens}
                _event(writer, json.dumps({"choices": [], "usage": usage | {"total_tokens": count + job.max_tokens}}))
                _event(writer, "[DONE]")
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                return
            await writer.drain()
    finally:
        job.cancelled.set()
        gone.cancel()


def _event(writer: asyncio.StreamWriter, payload: str) -> None:
    data = f"data: {payload}\n\n".encode()
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
