"""The first process of an engine's pod."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import msgspec

from kvarn.fleet.kubernetes.pod import heartbeats
from kvarn.replica.endpoint import CurveKeys, Endpoint, free_address
from kvarn.replica.spec import ReplicaSpec
from kvarn.replica.transport import ClientTransport
from kvarn.wire.messages import FromEngine
from kvarn.wire.supervision import Heartbeat

HOST = "127.0.0.1"


async def test_a_supervisor_hears_of_the_work_while_a_checkpoint_is_downloaded(
    make_spec: Callable[..., ReplicaSpec],
) -> None:
    keys, heard, told = CurveKeys.make(), threading.Event(), list[FromEngine]()

    def handle(message: FromEngine) -> None:
        told.append(message)
        heard.set()

    endpoint = Endpoint(engine=free_address(HOST), gateway_host=HOST, keys=keys.for_gateway())
    supervisor = ClientTransport(endpoint, free_address(HOST), handle, lambda error: None, watched=False)
    spec = msgspec.structs.replace(make_spec(), supervisor=supervisor.address, heartbeat_interval_s=0.01)

    def download() -> bool:
        with heartbeats(spec, keys.for_engine()):
            return heard.wait(60)

    try:
        assert await asyncio.to_thread(download)
    finally:
        supervisor.close()
    assert isinstance(told[0], Heartbeat) and told[0].work > 0
