"""What is repeated to an engine over TCP, and a connection that cannot be made at once."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import zmq

from conditions import until
from kvarn.config.replica import ReplicaConfig
from kvarn.fleet.supervision.engine_run import EngineRun
from kvarn.replica.client.connection import EngineConnection
from kvarn.replica.endpoint import CurveKeys, Endpoint, free_address
from kvarn.replica.transport import Inbox, Outbox, engine_outbox_keys
from kvarn.wire.messages import FromEngine, Leave
from kvarn.wire.supervision import Activate, Asleep, Drain, Supervise, Warm
from profiles import thorough

HOST = "127.0.0.1"


def an_endpoint() -> Endpoint:
    return Endpoint(engine=free_address(HOST), gateway_host=HOST, keys=CurveKeys.make())


class SilentEngine:
    """A `LaunchedEngine` without a process."""

    pid = 0

    def __init__(self) -> None:
        self.endpoint, self.supervisor = an_endpoint(), free_address(HOST)
        self.exited: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def kill(self) -> None:
        """It has no process."""

    def close(self) -> None:
        """It has left nothing."""


async def test_an_engine_hears_again_its_last_order_and_which_gateway_processes_are_gone_and_no_more() -> None:
    engine = SilentEngine()
    context = zmq.Context()
    inbox = Inbox(context, engine.endpoint)
    run = EngineRun(engine, ReplicaConfig(heartbeat_interval_s=0.05), lambda message: None)
    waiting = asyncio.create_task(run.wait())
    heard: list[object] = []

    def repeated() -> list[list[object]]:
        """What has come with each `Supervise`, up to the next one."""
        heard.extend(inbox.receive(0))
        starts = [number for number, message in enumerate(heard) if isinstance(message, Supervise)]
        return [heard[start + 1 : end] for start, end in pairwise(starts)]

    try:
        run.send(Activate())
        for gateway in range(100):
            run.forget_gateway(gateway)
        run.send(Drain())
        await until(lambda: len(repeated()) > 0 and Drain() in repeated()[-1], "it is told again")
        assert repeated()[-1] == [Leave(gateways=list(range(100))), Drain()]
    finally:
        engine.exited.set_result(None)
        await waiting
        inbox.close()
        context.destroy(linger=0)


@pytest.mark.parametrize("waiting", [Warm(), Asleep()], ids=["warm", "asleep"])
@pytest.mark.parametrize("activated", [thorough(False), True])
async def test_an_engine_that_waits_is_watched_for_silence_until_it_shall_load_a_model(
    waiting: Warm | Asleep, activated: bool
) -> None:
    engine, context = SilentEngine(), zmq.Context()
    start_timeout_s = 2.0 if activated else 60.0
    times = ReplicaConfig(heartbeat_interval_s=0.05, heartbeat_timeout_s=0.2, start_timeout_s=start_timeout_s)
    run = EngineRun(engine, times, lambda message: run.send(Activate()) if activated else None)
    outbox = Outbox(context, engine.supervisor, 0, engine_outbox_keys(engine.endpoint.keys))
    try:
        outbox.send(waiting)
        reason = (await asyncio.wait_for(run.wait(), 30)).reason
        assert reason == ("the engine was not ready after 2 s" if activated else "the engine was silent for 0.2 s")
    finally:
        outbox.close(drop=True)
        context.destroy(linger=0)


class TransportWithRest:
    """A `ClientTransport` to which something has come that was not handled."""

    address = "inproc://own"
    is_open = True

    def __init__(
        self, endpoint: Endpoint, own: str, handle: Callable[[FromEngine], None], failed: Callable[[Exception], None]
    ) -> None:
        self.read_rest = lambda: handle(Warm())

    def close(self) -> None:
        self.is_open = False


async def test_a_connection_is_closed_though_what_it_still_hands_over_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[TransportWithRest] = []

    def make(*arguments: Any) -> TransportWithRest:
        made.append(TransportWithRest(*arguments))
        return made[-1]

    def refuse(message: FromEngine) -> None:
        raise ValueError(message)

    monkeypatch.setattr("kvarn.replica.client.connection.ClientTransport", make)
    connection = EngineConnection(an_endpoint(), "inproc://own", lambda address: None, refuse, lambda error: None)
    connection.open()
    with pytest.raises(ValueError, match="Warm"):
        connection.close()
    assert not made[0].is_open and not connection.takes_requests


async def test_a_connection_that_cannot_be_made_is_tried_until_it_can_and_leaves_nothing_meanwhile(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "kvarn.replica.client.connection")
    changes: list[Exception | None] = []
    opened: list[str] = []
    threads = threading.active_count()
    with socket.create_server((HOST, 0)) as other:  # it has the port
        own = f"tcp://{HOST}:{other.getsockname()[1]}"
        connection = EngineConnection(an_endpoint(), own, opened.append, lambda message: None, changes.append)
        connection.open()
        await until(lambda: caplog.text.count("Address already in use") >= 3, "it is tried again and again")
        assert len(changes) == 1 and "this process cannot listen at" in str(changes[0])
        assert connection.is_lost and not connection.takes_requests
        assert threading.active_count() <= threads
    try:
        await until(lambda: opened == [own], "it is open")
    finally:
        connection.close()
