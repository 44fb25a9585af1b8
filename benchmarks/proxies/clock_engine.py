"""An HTTP server in the place of an engine: every step takes a fixed time and gives each running request one token.

LiteLLM's proxy (or a client without any gateway) speaks to it; Kvarn's gateway has `benchmarks.modelled_engine`.
A request joins at the next step, so both answer with the first token after one and a half steps on average.

    python -m benchmarks.proxies.clock_engine --step-ms 20 --port 8000
"""

from __future__ import annotations

import argparse
import asyncio
import json

_WORDS = (" mills", " grind", " grain", " with", " wind", " and", " running", " water")


class _Stream:
    """A request that runs: written to at every step."""

    def __init__(self, writer: asyncio.StreamWriter, tokens: int) -> None:
        self.writer = writer
        self.left = tokens
        self.done = asyncio.Event()


class ClockServer:
    """`POST /v1/chat/completions`, streamed only."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._joining: list[_Stream] = []
        head = {"id": "chatcmpl-clock", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        deltas = [{"role": "assistant", "content": word} for word in _WORDS]
        self._chunks = [_event(head | {"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
        last = _event(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self._end = last + _chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after another."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode("latin-1").lower().split("\r\n")
                size = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0)
                body = json.loads(await reader.readexactly(size)) if size else {}
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                stream = _Stream(writer, int(body.get("max_tokens", 16)))
                self._joining.append(stream)
                await stream.done.wait()
                writer.write(self._end)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has closed the connection
        finally:
            writer.close()

    async def run(self) -> None:
        """Step for ever."""
        running: list[_Stream] = []
        while True:
            running += self._joining
            self._joining = []
            await asyncio.sleep(self._step_s if running else 0.0005)
            for stream in running:
                stream.writer.write(self._chunks[stream.left % len(_WORDS)])
                stream.left -= 1
                if not stream.left:
                    stream.done.set()
            running = [stream for stream in running if stream.left]


def _event(chunk: dict[str, object]) -> bytes:
    return _chunked(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def _chunked(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def _serve(step_s: float, port: int) -> None:
    clock = ClockServer(step_s)
    async with await asyncio.start_server(clock.answer, "127.0.0.1", port, limit=1 << 20):
        await clock.run()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    asyncio.run(_serve(options.step_ms / 1000, options.port))


if __name__ == "__main__":
    main()
