"""Answers that would take memory or time without end."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from attack_world import facing
from kvarn.tools.functions import MAX_TOOLS
from kvarn.tools.http_client import MAX_RESPONSE_BYTES
from kvarn.tools.mcp import session
from kvarn.tools.server import ToolServer
from rogue_mcp import RogueMcp, text_result, tool
from scripted_server import Asked, answer

pytestmark = pytest.mark.attack("output bomb")
_EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"


class Bomb(RogueMcp):
    """A server whose answers to calls are written by `explode`."""

    explode: Any = None

    async def __call__(self, asked: Asked) -> AsyncIterator[bytes]:
        message = json.loads(asked.body) if asked.body else {}
        if message.get("method") == "tools/call" and self.explode is not None:
            async for part in self.explode(message):
                yield part
            return
        async for part in super().__call__(asked):
            yield part


async def failed_call(explode: Any) -> str:
    """The error that a call of the bomb ends with."""
    bomb = Bomb([tool("go")])
    bomb.explode = explode
    async with facing(bomb) as world:
        (go,) = (await world.open()).values()
        result = await asyncio.wait_for(world.call(go), 120)
        assert result.status == "failed"
        assert len(result.output) < 2000
        return result.output


async def test_a_result_of_more_bytes_than_are_taken() -> None:
    async def endless(message: Any) -> AsyncIterator[bytes]:
        yield _JSON + b'{"jsonrpc": "2.0", "result": {"content": [{"type": "text", "text": "'
        while True:
            yield b"x" * 65536

    assert f"more than {MAX_RESPONSE_BYTES} bytes" in await failed_call(endless)


async def test_events_without_end() -> None:
    async def endless(message: Any) -> AsyncIterator[bytes]:
        yield _EVENTS
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 1000}}
        while True:
            yield b"data: " + json.dumps(note).encode() + b"\n\n"

    assert "more than" in await failed_call(endless)


async def test_one_event_without_end() -> None:
    async def endless(message: Any) -> AsyncIterator[bytes]:
        yield _EVENTS + b"data: "
        while True:
            yield b"x" * 65536

    assert "The call failed" in await failed_call(endless)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x-unknown"])
async def test_a_compressed_result(encoding: str) -> None:
    async def compressed(message: Any) -> AsyncIterator[bytes]:
        yield answer(gzip.compress(b"0" * 100_000_000, 1), f"content-encoding: {encoding}")

    assert "compressed" in await failed_call(compressed)


async def test_a_result_nested_a_hundred_thousand_times() -> None:
    async def deep(message: Any) -> AsyncIterator[bytes]:
        body = b'{"jsonrpc": "2.0", "id": 3, "result": {"content": [], "structuredContent": ' + b"[" * 100_000
        yield answer(body + b"]" * 100_000 + b"}}", "content-type: application/json")

    assert "The call failed" in await failed_call(deep)


async def test_a_result_of_a_million_arrays() -> None:
    async def many(message: Any) -> AsyncIterator[bytes]:
        head = f'{{"jsonrpc": "2.0", "id": {json.dumps(message["id"])}, "result": {{"content": [], '.encode()
        arrays = b",".join([b"[]"] * 1_000_000)
        yield answer(head + b'"structuredContent": [' + arrays + b"]}}", "content-type: application/json")

    assert "objects and arrays" in await failed_call(many)


async def test_a_number_of_a_hundred_thousand_digits() -> None:
    async def long(message: Any) -> AsyncIterator[bytes]:
        head = f'{{"jsonrpc": "2.0", "id": {json.dumps(message["id"])}, "result": {{"content": [], '.encode()
        yield answer(head + b'"structuredContent": ' + b"9" * 100_000 + b"}}", "content-type: application/json")

    assert "The call failed" in await failed_call(long)


async def test_something_else_than_the_protocol() -> None:
    async def page(message: Any) -> AsyncIterator[bytes]:
        yield answer(b"<html>" * 1000, "content-type: text/html")

    assert "The call failed" in await failed_call(page)


async def test_a_slow_drip_ends_with_the_servers_time() -> None:
    bomb = Bomb([tool("go")])

    async def drip(message: Any) -> AsyncIterator[bytes]:
        yield _EVENTS
        while True:
            yield b": \n\n"
            await asyncio.sleep(0.01)

    async with facing(bomb) as world:
        place = world.server.url
        pinned = {"go": (await world.provider.told(world.servers.owner, ToolServer("x", url=place))).tools[0].digest}
        world.servers.known["rogue"] = ToolServer("rogue", url=place, timeout_s=0.5, pinned=pinned)
        (go,) = (await world.registered(require_approval="never")).values()
        bomb.explode = drip
        result = await asyncio.wait_for(world.call(go), 120)
        assert result.error == {
            "type": "http_error",
            "code": 504,
            "message": "'rogue' took more than 0.5 seconds",
        }
        await asyncio.wait_for(world.server.left.wait(), 60)


async def test_a_server_that_never_answers_a_listing_is_given_up() -> None:
    async def silent(asked: Asked) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async with facing(silent) as world:
        world.servers.known["rogue"] = ToolServer("rogue", url=world.server.url, timeout_s=0.5, pinned={})
        assert await asyncio.wait_for(world.registered(), 120) == {}
        assert world.error == "'rogue' took more than 0.5 seconds"


async def test_a_server_that_never_answers_the_end_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled session still says goodbye: nothing would end the wait for an answer to that."""

    class Clingy(RogueMcp):
        async def __call__(self, asked: Asked) -> AsyncIterator[bytes]:
            message = json.loads(asked.body) if asked.body else {}
            if asked.head.startswith("DELETE") or message.get("method") == "tools/list":
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
            elif message.get("method") == "initialize":
                reply = {"jsonrpc": "2.0", "id": message["id"], **self._reply(message)}
                yield answer(json.dumps(reply).encode(), "content-type: application/json", "mcp-session-id: one")
            else:
                async for part in super().__call__(asked):
                    yield part

    monkeypatch.setattr(session, "_GOODBYE_S", 0.05)
    async with facing(Clingy()) as world:
        world.servers.known["rogue"] = ToolServer("rogue", url=world.server.url, timeout_s=0.5, pinned={})
        assert await asyncio.wait_for(world.registered(), 60) == {}
        assert world.error == "'rogue' took more than 0.5 seconds"


async def test_a_client_that_leaves_takes_its_call_with_it() -> None:
    bomb, began = Bomb([tool("go")]), asyncio.Event()

    async def hold(message: Any) -> AsyncIterator[bytes]:
        yield _EVENTS
        began.set()
        while True:
            yield b": \n\n"
            await asyncio.sleep(0.01)

    bomb.explode = hold
    async with facing(bomb) as world:
        (go,) = (await world.open()).values()
        calling = asyncio.create_task(world.call(go))
        await began.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await asyncio.wait_for(world.server.left.wait(), 60)


async def test_a_stream_that_asks_to_be_read_again_and_again() -> None:
    async def again(message: Any) -> AsyncIterator[bytes]:
        yield _EVENTS + b"id: 1\nretry: 1\ndata: \n\n"

    assert "The call failed" in await failed_call(again)


async def test_a_hundred_thousand_tools() -> None:
    async with facing(RogueMcp([tool(f"t{n}") for n in range(5000)])) as world:
        assert len(await world.open()) == MAX_TOOLS
    async with facing(RogueMcp([tool(f"t{n}") for n in range(100_000)])) as world:
        assert await world.open() == {}
        assert "more than" in str(world.error)


async def test_pages_of_tools_without_end() -> None:
    class Pages(RogueMcp):
        pages = 0

        def _reply(self, message: dict[str, Any]) -> dict[str, Any]:
            if message["method"] == "tools/list":
                self.pages += 1
                return {"result": {"tools": [tool(f"t{self.pages}")], "nextCursor": str(self.pages)}}
            return super()._reply(message)

    pages = Pages()
    async with facing(pages) as world:
        assert len(await world.open()) <= MAX_TOOLS
    assert pages.pages <= 20


@pytest.mark.parametrize("what", ["wide", "deep", "long description", "long name"])
async def test_a_huge_definition(what: str) -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(40):
        deep = {"type": "object", "properties": {"a": deep}}
    huge = {
        "wide": tool("huge", properties={f"p{n}": {"type": "string"} for n in range(10_000)}),
        "deep": tool("huge", properties={"a": deep}),
        "long description": tool("huge", "very " * 100_000),
        "long name": tool("huge" * 1000),
    }[what]
    async with facing(RogueMcp([huge, tool("small")])) as world:
        offered = await world.open()
        sizes = [
            len(each.definition.description) + len(json.dumps(each.definition.parameters)) for each in offered.values()
        ]
        assert "rogue__small" in offered
        assert max(sizes) < 10_000
        assert max(map(len, offered)) <= 64


async def test_more_bytes_of_result_than_a_prompt_takes() -> None:
    async with facing(RogueMcp([tool("go")], lambda name, arguments: text_result("x" * 1_000_000))) as world:
        (go,) = (await world.open()).values()
        result = await world.call(go)
        shown = result.output.removesuffix("\n[The rest was cut off: it is longer than a result may be.]")
        assert len(shown) == world.asked.max_result_bytes < len(result.output), "the client and the model are told"
        assert result.metadata


async def test_more_bytes_of_an_error_than_a_prompt_takes() -> None:
    script = RogueMcp([tool("go")], lambda name, arguments: text_result("x" * 1_000_000, isError=True))
    async with facing(script) as world:
        (go,) = (await world.open()).values()
        result = await world.call(go)
        assert result.status == "failed"
        assert len(json.dumps(result.error)) < 2 * world.asked.max_result_bytes
