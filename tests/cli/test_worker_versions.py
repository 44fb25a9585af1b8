"""A gateway process beside the main one, of which this test is the main one: versions that come and go at its start."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
import pytest

from kvarn.api_servers import Serving, Start, Version, VersionRemoved
from kvarn.config.model import ModelConfig
from kvarn.config.schema import KvarnConfig
from kvarn.fleet.channel import Channel
from kvarn.fleet.desired import Desired
from kvarn.fleet.shared_counts import counts_handlers
from kvarn.fleet.versions import ServedVersion
from kvarn.limits.counts import Counts
from kvarn.replica.endpoint import free_address
from kvarn.text.checkpoint import resolve_checkpoint

WAIT_S = 120.0


@pytest.mark.thorough
async def test_a_version_that_is_removed_while_it_is_loaded_is_listed_by_no_process(tmp_path: Path) -> None:
    port = int(free_address("127.0.0.1").rpartition(":")[2])
    gateway = {"port": port, "api_server_count": 2}
    config = KvarnConfig.model_validate({"gateway": gateway, "data_dir": str(tmp_path)})
    model = ModelConfig(name="m", path="kvarn-demo")
    demo = Version.of(ServedVersion(Desired(model, 1), resolve_checkpoint("kvarn-demo"), created=0))
    start = Start(number=1, config=config.model_dump_json(), versions=[], broken=[], replicas=[])
    own, other = socket.socketpair()
    command = [sys.executable, "-P", "-m", "kvarn.api_servers.worker", str(other.fileno())]
    process = subprocess.Popen(command, pass_fds=[other.fileno()])  # noqa: ASYNC220  it returns at once
    other.close()
    serving = asyncio.Event()
    channel = await Channel.open(own, {**counts_handlers(Counts()), Serving: lambda _: serving.set()})
    try:
        channel.send(start)
        loaded = channel.call(demo, type(None))
        channel.send(VersionRemoved(model="m", number=1))
        async with asyncio.timeout(WAIT_S):
            await serving.wait()
            await loaded
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            listed = await client.get("/v1/models", timeout=WAIT_S)
            assert listed.json()["data"] == []
            demo = msgspec.structs.replace(demo, number=2)
            await asyncio.wait_for(channel.call(demo, type(None)), WAIT_S)
            listed = await client.get("/v1/models", timeout=WAIT_S)
            assert [each["id"] for each in listed.json()["data"]] == ["m"]
    finally:
        channel.close()
        await asyncio.to_thread(process.wait)
