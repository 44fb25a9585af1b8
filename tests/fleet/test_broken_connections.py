"""Connections over TCP that are cut while the engine lives: clients notice, fail what was under way, and join the
engine again, unless its supervisor says that it is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Literal

import msgspec
import pytest
import zmq

from conditions import collect, until
from kvarn.catalog.failover import ResumableRequest, generate_anywhere
from kvarn.catalog.replicas import ReplicaSet
from kvarn.config.replica import FailoverConfig
from kvarn.replica.client.protocol import ReplicaLostError, ReplicaState, ReplicaStatus
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.replica.endpoint import CurveKeys, Endpoint, free_address
from kvarn.replica.spec import ReplicaSpec
from kvarn.replica.transport import ClientTransport, Inbox, Outbox
from kvarn.routing.router import ReplicaChoice
from kvarn.wire.messages import FromEngine, Join, Ready, StepOutput, Submit, TokenDelta
from kvarn.wire.supervision import Activate, Asleep, Sleep, Supervise
from profiles import thorough
from remote_engines import end_engine, run_engine

WAIT_S = 60.0
HOST = "127.0.0.1"


class Proxy:
    """Passes connections on to an address, until they are cut."""

    def __init__(self, address: str) -> None:
        self._port = int(address.rpartition(":")[2])
        self.refuses = False
        """New connections."""
        self._silent = asyncio.Event()
        self.passed = self.swallowed = 0
        """Bytes that did, and that did not."""
        self.opened = 0
        self.writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        return f"tcp://{HOST}:{self._server.sockets[0].getsockname()[1]}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        if self.refuses:
            writer.transport.abort()
            return
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

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        silent = self._silent
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                if silent.is_set():
                    self.swallowed += len(data)
                else:
                    self.passed += len(data)
                    target.write(data)
        target.transport.abort()

    def silence_all(self) -> None:
        """Nothing passes the connections that there are, and neither end is told."""
        self._silent.set()
        self._silent = asyncio.Event()

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


class Engine:
    """An engine process behind the proxy, watched without it."""

    def __init__(self, own: Endpoint, endpoint: Endpoint, spec: ReplicaSpec) -> None:
        supervisor, self.told_ready, self.told_asleep = free_address(HOST), 0, 0
        self.endpoint = endpoint
        self._process = run_engine(msgspec.structs.replace(spec, endpoint=own, supervisor=supervisor))
        self._watching = ClientTransport(own, supervisor, self._handle, lambda error: None, watched=False)
        self.client = ZmqReplicaClient("scripted")

    def _handle(self, message: FromEngine) -> None:
        self.told_ready += isinstance(message, Ready)
        self.told_asleep += isinstance(message, Asleep)

    def order(self, order: Sleep | Activate) -> None:
        self._watching.send(order)

    def supervise(self, knows: Literal["", "warm", "asleep", "ready"]) -> None:
        self._watching.send(Supervise(address=self._watching.address, knows=knows))

    def status(self, state: ReplicaState) -> ReplicaStatus:
        """What a supervisor would say."""
        return ReplicaStatus(model="m", replica="m/0", state=state, endpoint=self.endpoint)

    async def start(self) -> None:
        await until(lambda: self.told_ready > 0, "it is ready")
        self.client.update(self.status(ReplicaState.READY))

    async def close(self) -> None:
        self.client.close()
        self._watching.close()
        await asyncio.to_thread(end_engine, self._process)


@pytest.fixture
async def engine(
    proxied: tuple[Endpoint, Endpoint, Proxy], make_spec: Callable[..., ReplicaSpec]
) -> AsyncGenerator[Engine]:
    own, endpoint, _ = proxied
    made = Engine(own, endpoint, make_spec(step_s=0.02))
    await made.start()
    yield made
    await made.close()


async def read_until_lost(stream: AsyncGenerator[TokenDelta, None]) -> list[int]:
    tokens = []
    with pytest.raises(ReplicaLostError):
        async with asyncio.timeout(WAIT_S):
            async for delta in stream:
                tokens += delta.token_ids
    return tokens


@pytest.mark.parametrize("cut", ["reset_all", thorough("silence_all")])
async def test_after_a_cut_the_same_engine_serves_again_and_runs_nothing_that_was_lost(
    proxied: tuple[Endpoint, Endpoint, Proxy], engine: Engine, submit: Callable[..., Submit], cut: str
) -> None:
    client, proxy = engine.client, proxied[2]
    lost = client.generate(submit("lost", max_tokens=1_000_000))
    await asyncio.wait_for(anext(lost), WAIT_S)
    getattr(proxy, cut)()
    await read_until_lost(lost)
    assert client.state is ReplicaState.DOWN
    await until(lambda: client.state is ReplicaState.READY, "the engine is joined again")
    answer = await collect(client, submit("after", max_tokens=5))
    assert len(answer) == 5
    await until(lambda: client.stats.finished_total > 0 and client.stats.running == 0, "the lost one is aborted")
    assert client.starts == 1, "it is the same engine process"


@pytest.mark.thorough
async def test_a_request_goes_on_with_the_engine_that_is_joined_again(
    proxied: tuple[Endpoint, Endpoint, Proxy], engine: Engine, submit: Callable[..., Submit]
) -> None:
    replicas, request = ReplicaSet({"m/0": engine.client}), submit("r", max_tokens=150)
    wanted = await collect(engine.client, request)
    config = FailoverConfig(max_wait_s=WAIT_S)
    tokens = []
    async with asyncio.timeout(WAIT_S):
        async for delta in generate_anywhere(ResumableRequest(replicas, ReplicaChoice("m/0"), request, config)):
            tokens += delta.token_ids
            if len(tokens) == 10:
                proxied[2].reset_all()
    assert tokens == wanted


async def test_an_engine_that_cannot_be_reached_or_is_declared_lost_is_not_ready(
    proxied: tuple[Endpoint, Endpoint, Proxy], engine: Engine, submit: Callable[..., Submit]
) -> None:
    client, proxy = engine.client, proxied[2]
    lost = client.generate(submit("lost", max_tokens=1_000_000))
    await asyncio.wait_for(anext(lost), WAIT_S)
    proxy.refuses = True
    seen: set[ReplicaState] = set()
    client.on_changed = lambda: seen.add(client.state)
    proxy.reset_all()
    await read_until_lost(lost)
    refused = proxy.opened
    await until(lambda: proxy.opened > refused + 3, "it is tried again")
    client.update(engine.status(ReplicaState.READY))  # its supervisor still hears it
    with pytest.raises(ReplicaLostError):
        await anext(client.generate(submit("too early")))
    assert seen == {ReplicaState.DOWN}

    client.update(engine.status(ReplicaState.DOWN))
    proxy.refuses = False
    await asyncio.sleep(1.0)  # twice as long as the pause between tries
    assert seen == {ReplicaState.DOWN}, "nobody joins an engine that was declared lost"


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
        port = int(joins()[0].address.rpartition(":")[2])
        _, early = await asyncio.open_connection(HOST, port)  # open at the engine's handshake
        outbox = Outbox(context, joins()[0].address, 1000, (own.keys.engine, own.keys.engine_secret, own.keys.gateway))
        outbox.send(StepOutput(deltas=[], stats=msgspec.structs.replace(client.stats, running=7)))
        await until(lambda: client.stats.running == 7, "connected")

        early.close()
        for sent in (b"", b"GET / HTTP/1.0\r\n\r\n"):
            reader, stranger = await asyncio.open_connection(HOST, port)
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
        tokens += await read_until_lost(stream)
        assert tokens == list(range(len(tokens)))
        await until(lambda: len(joins()) == 2, "it joins again")
        assert client.state is ReplicaState.DOWN, "the engine has not answered"
        again = Outbox(context, joins()[1].address, 1000, (own.keys.engine, own.keys.engine_secret, own.keys.gateway))
        again.send(StepOutput(deltas=[]))
        await until(lambda: client.state is ReplicaState.READY, "it has")
        again.close()
    finally:
        client.close()
        inbox.close()
        context.destroy(linger=0)


async def test_an_engine_says_again_that_it_is_ready_or_asleep_until_its_supervisor_knows(
    engine: Engine,
) -> None:
    engine.supervise("")
    await until(lambda: engine.told_ready == 2, "it says so again")
    engine.supervise("ready")
    engine.supervise("")
    await until(lambda: engine.told_ready == 3, "and again")
    engine.order(Sleep())
    await until(lambda: engine.told_asleep == 1, "it sleeps")
    engine.supervise("ready")
    await until(lambda: engine.told_asleep == 2, "it says so again")
    engine.supervise("asleep")
    engine.order(Activate())
    await until(lambda: engine.told_ready == 4, "it is awake")
    assert engine.told_asleep == 2
