"""The engine that asks another for prompts: the other end is a socket of this test."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq

from kv_blocks import BLOCK_BYTES, MODEL, SCOPE, contents_of, name_of, wait_until
from kvarn.kvstore import MemoryTier, TieredStore
from kvarn.kvstore.record import BlockId, pack_header, tenant_digest
from kvarn.replica.server.prefill.client import PrefillClient
from kvarn.replica.server.prefill.messages import (
    Ask,
    Block,
    Cancel,
    Greeting,
    Received,
    ToPrefill,
    Welcome,
    open_socket,
)

WAIT_MS = 60_000
GENERATION = b"g" * 16
NAMES = [name_of(number) for number in range(3)]


class Peer:
    """The engine that computes prompts. It has greeted the client."""

    def __init__(self, path: Path) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = open_socket(self._context, zmq.ROUTER)
        self._socket.bind(f"ipc://{path}")
        assert isinstance(self.told(), Greeting)
        self.send(Welcome(GENERATION))

    def told(self) -> ToPrefill:
        assert self._socket.poll(WAIT_MS)
        self._client, message = self._socket.recv_multipart()
        return msgspec.msgpack.decode(message, type=ToPrefill)

    def send(self, message: Welcome | Block, *record: bytes) -> None:
        self._socket.send_multipart([self._client, msgspec.msgpack.encode(message), *record])

    def send_block(self, job: int, index: int) -> None:
        block, contents = BlockId(NAMES[index], MODEL, tenant_digest("acme"), SCOPE), contents_of(index)
        self.send(Block(job, GENERATION, index), pack_header(block, contents), contents)

    def close(self) -> None:
        self._context.destroy(linger=0)


@contextmanager
def joined(tiers: TieredStore, path: Path) -> Generator[tuple[PrefillClient, Peer], None, None]:
    client = PrefillClient(tiers, str(path), MODEL, BLOCK_BYTES)
    peer = Peer(path)
    try:
        wait_until(lambda: client.load() is not None)
        yield client, peer
    finally:
        client.close()
        peer.close()


def a_sequence() -> Any:
    scope = SimpleNamespace(tenant="acme", salt="", adapter="")
    account = SimpleNamespace(weight=1.0)
    request = SimpleNamespace(scope=scope, account=account, prompt=[1] * 48, priority=0)
    return SimpleNamespace(request=request, num_prompt=48, fetch=SimpleNamespace(block_names=NAMES))


def a_store() -> TieredStore:
    return TieredStore(MemoryTier(8, BLOCK_BYTES, 8))


class OtherStore(TieredStore):
    """Does something else when it is asked to expect a block, or to take one."""

    def __init__(self, at_expect: Callable[[], None] = lambda: None, at_receive: Callable[[], None] = lambda: None):
        super().__init__(MemoryTier(8, BLOCK_BYTES, 8))
        self.at_expect, self.at_receive = at_expect, at_receive

    def expect(self, *arguments: Any) -> Any:
        self.at_expect()
        return super().expect(*arguments)

    def receive(self, *arguments: Any) -> bool:
        self.at_receive()
        return super().receive(*arguments)


def test_a_prompt_is_not_asked_for_where_the_connection_ends_meanwhile(tmp_path: Path) -> None:
    tiers = OtherStore()
    with joined(tiers, tmp_path / "prefill") as (client, _):
        tiers.at_expect = client.close
        assert client.prefill(a_sequence(), NAMES, SCOPE) is None
    others = [name_of(number) for number in range(3, 7)]
    assert tiers.expect(others, "acme", SCOPE) is not None, "no room is kept for its blocks"


def test_each_loss_of_a_prefill_engine_that_was_reached_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "prefill"
    with joined(a_store(), path) as (client, peer):
        for losses in (1, 2):
            wait_until(lambda: client.load() is not None)
            peer.close()
            wait_until(lambda: client.load() is None)
            peer = Peer(path)
            assert caplog.text.count("the prefill engine was lost") == losses
        peer.close()


def test_a_block_that_is_not_kept_is_not_counted_and_ends_its_job(tmp_path: Path) -> None:
    tiers = a_store()
    with joined(tiers, tmp_path / "prefill") as (client, peer):
        fetch = client.prefill(a_sequence(), NAMES, SCOPE)
        asked = peer.told()
        assert fetch is not None and isinstance(asked, Ask)
        peer.send_block(asked.job, 0)
        assert peer.told() == Received(1)
        wait_until(lambda: client.stats().stored_bytes_total == BLOCK_BYTES)
        tiers.forget("acme")
        peer.send_block(asked.job, 1)
        assert [peer.told(), peer.told()] == [Received(1), Cancel(asked.job)]
        assert fetch.is_done()
        assert client.stats().stored_bytes_total == BLOCK_BYTES
        assert not client.stats().dropped_total
        load = client.load()
        assert load is not None and load.token_s == 0, "the speed of an incomplete job says nothing"


def test_a_client_that_fails_ends_its_jobs_says_so_and_can_be_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("a defect")

    with joined(OtherStore(at_receive=fail), tmp_path / "prefill") as (client, peer):
        fetch = client.prefill(a_sequence(), NAMES, SCOPE)
        asked = peer.told()
        assert fetch is not None and isinstance(asked, Ask)
        peer.send_block(asked.job, 0)
        wait_until(fetch.is_done)
        assert client.load() is None
        client.forget("acme")
        client.close()
        (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert record.exc_info is not None and "its prefill client failed" in record.message
