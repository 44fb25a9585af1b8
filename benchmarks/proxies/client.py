"""A client that costs little: so many streams at once, each asking again when its answer has ended.

    python -m benchmarks.proxies.client URL --streams 32 --tokens 64 --seconds 10

Prints JSON: `ttft_ms` of every request, `tokens` and `events` received and `seconds` taken, after a warm-up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from urllib.parse import urlsplit

_EVENT = b"data: {"


class Load:
    """What the streams have received."""

    def __init__(self, warm_until: float, until: float) -> None:
        self.warm_until = warm_until
        self.until = until
        self.ttft_ms: list[float] = []
        self.tokens = 0.0
        self.events = 0

    def count(self, began: float, ended: float, tokens: int) -> None:
        """An answer of so many tokens; the part of it that lies in the measured time. Events are not counted: under
        load one may carry several tokens."""
        inside = min(ended, self.until) - max(began, self.warm_until)
        self.tokens += tokens * max(0.0, inside) / (ended - began)


async def _stream(host: str, port: int, request: bytes, tokens: int, load: Load, delay: float) -> None:
    await asyncio.sleep(delay)
    reader, writer = await asyncio.open_connection(host, port)
    measured = False  # one request at least, however slow the machine is
    while not measured or time.monotonic() < load.until:
        began = time.monotonic()
        writer.write(request)
        seen, first = b"", None
        while b"data: [DONE]" not in seen:
            part = await reader.read(1 << 16)
            if not part:
                raise ConnectionError(f"the answer ended early: {seen[-300:]!r}")
            now = time.monotonic()
            if load.warm_until <= now <= load.until:
                load.events += part.count(_EVENT)
            if first is None and b'"content"' in part:
                first = now
            seen = seen[-32:] + part
            if first is None and (b" 4" in part[:16] or b" 5" in part[:16]):
                raise ConnectionError(f"refused: {part[:400]!r}")
        assert first is not None, seen
        load.count(began, time.monotonic(), tokens)
        if load.warm_until <= began:
            measured = True
            load.ttft_ms.append(1000 * (first - began))
        while not seen.endswith(b"0\r\n\r\n"):
            seen = seen[-32:] + await reader.read(1 << 16)
    writer.close()


async def run(url: str, streams: int, tokens: int, seconds: float, key: str) -> dict[str, object]:
    """Load a server; see the module's docstring."""
    parts = urlsplit(url)
    body = {"model": "m", "messages": [{"role": "user", "content": "Tell me of mills."}], "max_tokens": tokens}
    data = json.dumps(body | {"stream": True, "ignore_eos": True} if key == "kvarn" else body | {"stream": True})
    head = (
        f"POST {parts.path or '/v1/chat/completions'} HTTP/1.1\r\nhost: {parts.netloc}\r\n"
        f"authorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    warm = time.monotonic() + 0.2 * seconds
    load = Load(warm, warm + seconds)
    request = head.encode() + data.encode()
    jobs = [
        _stream(parts.hostname or "127.0.0.1", parts.port or 80, request, tokens, load, 0.01 * number)
        for number in range(streams)
    ]
    await asyncio.gather(*jobs)
    return {"ttft_ms": load.ttft_ms, "tokens": load.tokens, "events": load.events, "seconds": seconds}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--key", default="kvarn")
    arguments = parser.parse_args()
    asked = (arguments.url, arguments.streams, arguments.tokens, arguments.seconds, arguments.key)
    print(json.dumps(asyncio.run(run(*asked))))


if __name__ == "__main__":
    main()
