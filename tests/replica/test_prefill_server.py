"""The engine that computes prompts for another: its clients are sockets of this test, and so is its own engine."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import zmq

from kvarn.engine.plan import BlockTransfer
from kvarn.kvstore import MemoryTier, TieredStore
from kvarn.replica.addresses import engine_address
from kvarn.replica.server.prefill.messages import (
    VERSION,
    Ask,
    Block,
    Done,
    FromPrefill,
    Greeting,
    Received,
    Rejected,
    ToPrefill,
    Welcome,
    open_socket,
)
from kvarn.replica.server.prefill.server import PrefillServer
from kvarn.wire.messages import OWN_PROCESS, Abort, Join, Submit, ToEngine, TokenDelta
from kvarn.wire.sampling import SamplingParams

MODEL, SCOPE, BLOCK_BYTES = b"m" * 16, b"s" * 16, 64
WAIT_MS = 60_000
NAMES = [bytes([number]) * 16 for number in range(1, 9)]
SUBMIT = Submit(request_id="r", prompt_token_ids=[1], sampling=SamplingParams(seed=0, max_tokens=0), tenant="acme")


class Sockets:
    """A prefill server, its engine's inbox and its clients. Two blocks are on their way to a client at a time."""

    def __init__(self, folder: Path) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._path = str(folder / "prefill")
        self.engine = self._context.socket(zmq.PULL)
        self.engine.bind(engine_address(folder))
        self.tiers = TieredStore(MemoryTier(len(NAMES), BLOCK_BYTES, len(NAMES)))
        self.server = PrefillServer(self.tiers, self._path, MODEL, BLOCK_BYTES, str(folder), 2 * BLOCK_BYTES)
        assert isinstance(self.told(), Join)

    def client(self, model: bytes = MODEL) -> zmq.Socket[bytes]:
        client = open_socket(self._context, zmq.DEALER)
        client.connect(f"ipc://{self._path}")
        send(client, Greeting(VERSION, model, BLOCK_BYTES))
        return client

    def store(self, names: list[bytes]) -> None:
        transfers = [BlockTransfer(0, name, "acme", SCOPE) for name in names]
        self.tiers.store(transfers, [[memoryview(bytearray(BLOCK_BYTES))] for _ in names])

    def told(self) -> ToEngine:
        """What the engine hears next."""
        assert self.engine.poll(WAIT_MS)
        return msgspec.msgpack.decode(self.engine.recv(), type=ToEngine)

    def settle(self, request_id: str) -> None:
        """The engine has ended a request, and stored its last blocks."""
        delta = TokenDelta(request_id=request_id, index=0, token_ids=[], finish_reason="length")
        self.server.after_step(SimpleNamespace(stores_settle_after=0, num_collected=0), [delta])

    def close(self) -> None:
        self.server.close()
        self._context.destroy(linger=0)


@pytest.fixture
def sockets(tmp_path: Path) -> Generator[Sockets, None, None]:
    made = Sockets(tmp_path)
    yield made
    made.close()


def send(client: zmq.Socket[bytes], message: ToPrefill) -> None:
    client.send(msgspec.msgpack.encode(message))


def received(client: zmq.Socket[bytes]) -> FromPrefill:
    assert client.poll(WAIT_MS)
    return msgspec.msgpack.decode(client.recv_multipart()[0], type=FromPrefill)


def blocks(client: zmq.Socket[bytes]) -> list[int]:
    """Places of the blocks that have been sent: a greeting that is refused is answered behind them."""
    send(client, Greeting(VERSION, b"other weights...", BLOCK_BYTES))
    places = []
    while isinstance(message := received(client), Block):
        places.append(message.index)
    assert isinstance(message, Rejected)
    return places


def greeted(sockets: Sockets) -> zmq.Socket[bytes]:
    client = sockets.client()
    assert isinstance(received(client), Welcome)
    return client


def ask(sockets: Sockets, client: zmq.Socket[bytes], names: list[bytes]) -> str:
    """Ask for blocks; returns the id of the engine's request."""
    send(client, Ask(1, SUBMIT, names, SCOPE))
    submitted = sockets.told()
    assert isinstance(submitted, Submit)
    return submitted.request_id


def test_an_engine_with_other_weights_is_told_that_it_is_refused(sockets: Sockets) -> None:
    answer = received(sockets.client(model=b"x" * 16))
    assert isinstance(answer, Rejected)
    assert "other weights" in answer.reason


def test_a_slow_client_is_sent_no_more_blocks_than_it_has_room_for(sockets: Sockets) -> None:
    client = greeted(sockets)
    sockets.store(NAMES[:4])
    request_id = ask(sockets, client, NAMES[:5])
    assert blocks(client) == [0, 1]
    send(client, Received(1))
    assert blocks(client) == [2]
    sockets.store(NAMES[4:5])
    sockets.settle(request_id)
    assert blocks(client) == []
    send(client, Received(3))
    assert [received(client).index for _ in range(2)] == [3, 4]
    last = received(client)
    assert isinstance(last, Done)
    assert not last.problem, "it ends with its last block, after the engine has"


def test_a_block_that_is_evicted_before_a_slow_client_took_it_ends_the_job(sockets: Sockets) -> None:
    client = greeted(sockets)
    sockets.store(NAMES[:3])
    request_id = ask(sockets, client, NAMES[:3])
    assert blocks(client) == [0, 1]
    sockets.tiers.forget("acme")
    send(client, Received(2))
    ended = received(client)
    assert isinstance(ended, Done)
    assert ended.problem == "evicted"
    assert sockets.told() == Abort(request_id=request_id, gateway=OWN_PROCESS)


def test_requests_of_a_client_that_is_gone_are_aborted_though_nothing_is_sent_to_it(sockets: Sockets) -> None:
    client, other = greeted(sockets), greeted(sockets)
    request_id = ask(sockets, client, NAMES)
    client.close(linger=0)
    assert sockets.told() == Abort(request_id=request_id, gateway=OWN_PROCESS)
    assert isinstance(received(other), Welcome), "those that are there are asked, and stay"
    ask(sockets, other, NAMES)
