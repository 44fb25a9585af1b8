"""The path of a request: which functions of Kvarn one streamed chat runs through in the gateway process, in order.

    python -m benchmarks.request_path
    python -m benchmarks.request_path --list

The gateway and its HTTP server are the real ones; the replica is an in-process fake whose own functions are not
counted. A call is a function that begins, a resumption a coroutine or generator that goes on. The path are the
functions of `gateway`, `answers`, `catalog`, `external`, `rollouts` and `replica/client`; functions of other packages
that they call are listed and counted too. Figures of a token are the difference between a long and a short answer.
Metrics are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from types import CodeType, FrameType

from tests.support.fake_client import FakeReplicaClient

from kvarn.catalog.models import ServedModel
from kvarn.config.schema import KvarnConfig
from kvarn.gateway.app import create_app
from kvarn.gateway.server import bind, build_server
from kvarn.wire.messages import ModelCard

SOURCE = Path(__file__).parent.parent / "src"
DEMO = SOURCE / "kvarn" / "assets" / "kvarn-demo"
SHORT, LONG = 20, 120
"""Tokens of the answers that are compared."""
PATH = ("gateway/", "answers/", "catalog/", "external/", "rollouts/", "replica/client/")
"""Packages that a request goes through; others are called by these."""
_NOT_COUNTED = ("observe/",)
"""Metrics, which most functions write to."""


@dataclass
class CallPath:
    """What ran, in order."""

    calls: list[str] = field(default_factory=list)
    """Functions that began, by module and name."""
    resumptions: int = 0


@contextmanager
def traced() -> Generator[CallPath]:
    """Record the functions of Kvarn that run in this thread."""
    path, names = CallPath(), dict[CodeType, str | None]()

    def name_of(code: CodeType) -> str | None:
        if code not in names:
            file = Path(code.co_filename)
            where = file.relative_to(SOURCE / "kvarn").as_posix() if file.is_relative_to(SOURCE / "kvarn") else ""
            names[code] = f"{where}: {code.co_qualname}" if where and not where.startswith(_NOT_COUNTED) else None
        return names[code]

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and (name := name_of(frame.f_code)) is not None:
            if frame.f_code.co_code[frame.f_lasti + 1] == 0:  # the argument of RESUME: 0 at a function's start
                path.calls.append(name)
            else:
                path.resumptions += 1

    sys.setprofile(profile)
    try:
        yield path
    finally:
        sys.setprofile(None)


def chat(port: int, tokens: int) -> None:
    """Client: one streamed chat, read to its end."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": tokens, "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse().read()
    assert answer.endswith(b"data: [DONE]\n\n"), answer[-200:]
    connection.close()


async def trace_chat(port: int, tokens: int) -> CallPath:
    """The path of one chat; what runs beside it now and then is left out by taking the shortest of seven."""
    paths = []
    for _ in range(7):
        await asyncio.sleep(0.2)  # the one before is settled
        with traced() as path:
            await asyncio.to_thread(chat, port, tokens)
            await asyncio.sleep(0.05)
        paths.append(path)
    return min(paths, key=lambda path: len(path.calls) + path.resumptions)


async def measure(data_dir: str, *, show: bool) -> None:
    """Serve a fake replica, trace, and print."""
    config = KvarnConfig.model_validate({"gateway": {"port": 0}, "batches": {"enabled": False}, "data_dir": data_dir})
    model = config.models[0].model_copy(update={"name": "m"})
    card = ModelCard(
        kind="generate", architecture="", dtype="", vocab_size=4096, max_context_length=4096, num_parameters=0
    )
    replica = FakeReplicaClient(card, lambda request, index: [300 + i % 3000 for i in range(LONG)], step_s=0.0005)
    server = build_server(create_app(config, {"m": ServedModel("m", model, [replica], DEMO)}), config.gateway)
    listener = bind(config.gateway)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    port = listener.getsockname()[1]
    try:
        await asyncio.to_thread(_wait_until_ready, port)
        await asyncio.to_thread(chat, port, 2)  # imports and caches
        short, long = await trace_chat(port, SHORT), await trace_chat(port, LONG)
    finally:
        server.should_exit = True
        await serving
    per_token = (len(long.calls) - len(short.calls)) / (LONG - SHORT)
    resumed = (long.resumptions - short.resumptions) / (LONG - SHORT)
    request = len(short.calls) - per_token * SHORT
    if show:
        print("\n".join(_numbered(short.calls)))
    functions = set(short.calls)
    path = {name for name in functions if name.startswith(PATH) and "<locals>" not in name}
    print(f"path:    {len(path)} functions of gateway, answers, catalog, external, rollouts and replica/client")
    print(f"request: {request:.0f} calls of {len(functions)} functions")
    print(f"token:   {per_token:.1f} calls, {resumed:.1f} resumptions")


def _wait_until_ready(port: int) -> None:
    for _ in range(300):
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        with suppress(OSError):
            connection.request("GET", "/ready")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.1)
    raise SystemExit("the gateway was not ready within 30 s")


def _numbered(calls: list[str]) -> list[str]:
    """Each function where it is called first, with how often it is."""
    return [f"{number:4}  {calls.count(name):4} x  {name}" for number, name in enumerate(dict.fromkeys(calls), 1)]


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the functions in the order of their first call")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as data_dir:
        asyncio.run(measure(data_dir, show=arguments.list))


if __name__ == "__main__":
    main()
