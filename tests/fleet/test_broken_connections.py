"""Connections over TCP that are reset: clients notice, fail what was under way, and join the engine again."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable

import msgspec
import pytest
import zmq

from kvarn.fleet.process_exit import exit_of
from kvarn.replica.client.protocol import ReplicaLostError, ReplicaState, ReplicaStatus
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.replica.endpoint import CurveKeys, Endpoint, free_address
from kvarn.replica.spec import ReplicaSpec
from kvarn.replica.transport import ClientTransport, Inbox, Outbox
from kvarn.wire.messages import FromEngine, Join, Ready, StepOutput, Submit, TokenDelta

WAIT_S = 60.0
HOST = "127.0.0.1"


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not within {WAIT_S:g} s: {what}"
        await asyncio.sleep(0.02)


class Proxy:
    """Passes connections on to an address, until they are reset."""

    def __init__(self, address: str) -> None:
        self._port = int(address.rpartition(":")[2])
        self.writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        return f"tcp://{HOST}:{self._server.sockets[0].getsockname()[1]}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(HOST, self._port)
        except ConnectionError:  # the engine does not listen yet, or any more
            writer.transport.abort()
            return
        self.writers += [writer, there_writer]
        for source, target in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._copy(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                target.write(data)
        target.transport.abort()

    def reset_all(self) -> None:
        writers, self.writers = self.writers, []
        for writer in writers:
            writer.transport.abort()

    async def close(self) -> None:
        self._server.close()
        self.reset_all()
        await asyncio.gather(*self._tasks)


@pytest.fixture
async def proxied() -> AsyncGenerator[tuple[Endpoint, Endpoint, Proxy]]:
    """An engine's endpoint, the same as clients reach it, and what is between."""
    own = Endpoint(engine=free_address(HOST), gateway_host=HOST, keys=CurveKeys.make())
    proxy = Proxy(own.engine)
    yield own, msgspec.structs.replace(own, engine=await proxy.start()), proxy
    await proxy.close()


async def test_after_a_reset_the_same_engine_serves_again_and_runs_nothing_that_was_lost(
    proxied: tuple[Endpoint, Endpoint, Proxy], make_spec: Callable[..., ReplicaSpec], submit: Callable[..., Submit]
) -> None:
    own, endpoint, proxy = proxied
    supervisor, ready = free_address(HOST), asyncio.Event()

    def handle(message: FromEngine) -> None:
        if isinstance(message, Ready):
            ready.set()

    spec = msgspec.structs.replace(make_spec(step_s=0.02), endpoint=own, supervisor=supervisor)
    command = [sys.executable, "-P", "-m", "kvarn.replica.server", "scripted_engine"]
    engine = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: ASYNC220  it returns at once
    watching = ClientTransport(endpoint, supervisor, handle, lambda error: None, watch_connections=False)
    client = ZmqReplicaClient("scripted")
    try:
        assert engine.stdin is not None
        engine.stdin.write(msgspec.json.encode(spec) + b"\n")
        engine.stdin.flush()
        await asyncio.wait_for(ready.wait(), WAIT_S)
        client.update(ReplicaStatus(model="m", replica="m/0", state=ReplicaState.READY, endpoint=endpoint))
        lost = client.generate(submit("lost", max_tokens=1_000_000))
        await anext(lost)
        proxy.reset_all()
        with pytest.raises(ReplicaLostError):
            async with asyncio.timeout(WAIT_S):
                async for _ in lost:
                    pass
        assert client.state is ReplicaState.DOWN
        await until(lambda: client.state is ReplicaState.READY, "the engine is joined again")
        answer = [token async for delta in client.generate(submit("after", max_tokens=5)) for token in delta.token_ids]
        assert len(answer) == 5
        await until(lambda: client.stats.finished_total > 0 and client.stats.running == 0, "the lost one is aborted")
        assert client.starts == 1, "it is the same engine process"
    finally:
        client.close()
        watching.close()
        engine.kill()
        await exit_of(engine)
        assert engine.stdin is not None
        engine.stdin.close()


async def test_whoever_has_no_key_breaks_no_connection_and_an_answer_that_breaks_has_no_gap(
    proxied: tuple[Endpoint, Endpoint, Proxy], submit: Callable[..., Submit]
) -> None:
    own, endpoint, _ = proxied
    context = zmq.Context()
    inbox = Inbox(context, own)
    arrived: list[object] = []
    client = ZmqReplicaClient("m")
    client.update(ReplicaStatus(model="m", replica="m/0", state=ReplicaState.READY, endpoint=endpoint))

    def joins() -> list[Join]:
        arrived.extend(inbox.receive(0))
        return [message for message in arrived if isinstance(message, Join)]

    try:
        await until(lambda: len(joins()) == 1, "the client joins")
        assert own.keys is not None
        outbox = Outbox(context, joins()[0].address, 1000, (own.keys.engine, own.keys.engine_secret, own.keys.gateway))
        outbox.send(StepOutput(deltas=[], stats=msgspec.structs.replace(client.stats, running=7)))
        await until(lambda: client.stats.running == 7, "connected")

        for sent in (b"", b"GET / HTTP/1.0\r\n\r\n"):
            reader, stranger = await asyncio.open_connection(HOST, int(joins()[0].address.rpartition(":")[2]))
            stranger.write(sent)
            await stranger.drain()
            if sent:
                with contextlib.suppress(ConnectionResetError):
                    await asyncio.wait_for(reader.read(), WAIT_S)  # until it is refused
            stranger.close()
        outbox.send(StepOutput(deltas=[], stats=msgspec.structs.replace(client.stats, running=8)))
        await until(lambda: client.stats.running == 8, "it is still connected")
        assert client.state is ReplicaState.READY

        stream = client.generate(submit("r", max_tokens=100))
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        for token in range(50):
            outbox.send(StepOutput(deltas=[TokenDelta(request_id="r", index=0, token_ids=[token])]))
        outbox.close()
        tokens = [*(await asyncio.wait_for(first, WAIT_S)).token_ids]
        with pytest.raises(ReplicaLostError):
            async with asyncio.timeout(WAIT_S):
                async for delta in stream:
                    tokens += delta.token_ids
        assert tokens == list(range(len(tokens)))
        await until(lambda: len(joins()) == 2, "it joins again")
        assert client.state is ReplicaState.READY
    finally:
        client.close()
        inbox.close()
        context.destroy(linger=0)
