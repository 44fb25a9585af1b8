"""An engine on another machine (a network namespace) whose link is slow, loses packets (`tc netem`) or is down."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import count

import msgspec
import pytest

from conditions import until
from kvarn.config.replica import ReplicaConfig
from kvarn.fleet.launch.launcher import LaunchedEngine, Launcher
from kvarn.fleet.launch.process_exit import describe_exit, exit_of
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.replica.client.protocol import ReplicaLostError, ReplicaState
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.replica.endpoint import CurveKeys, Endpoint, free_address, tcp_address
from kvarn.replica.spec import ReplicaSpec
from kvarn.wire.messages import Submit

WAIT_S = 60.0
CONFIG = ReplicaConfig(heartbeat_interval_s=0.2, heartbeat_timeout_s=4.0, restart_backoff_s=0.1)
HERE, THERE = "10.213.77.1", "10.213.77.2"


class Network:
    """A machine beyond a link."""

    def __init__(self) -> None:
        self.name = f"kvarn{os.getpid()}"
        self._device = f"kv{os.getpid() % 100_000}"
        self._run("ip", "netns", "add", self.name)
        try:
            link = ("link", "add", self._device, "type", "veth", "peer", "name", "there", "netns", self.name)
            self._run("ip", *link)
            self._run("ip", "addr", "add", f"{HERE}/30", "dev", self._device)
            self._run("ip", "link", "set", self._device, "up")
            for command in (
                ["addr", "add", f"{THERE}/30", "dev", "there"],
                ["link", "set", "there", "up"],
                ["link", "set", "lo", "up"],
            ):
                self._run("ip", "-n", self.name, *command)
        except BaseException:
            self.remove()
            raise

    def shape(self, *netem: str) -> None:
        """Have the link, in both directions, do what netem is told; skip the test where the kernel has no netem."""
        try:
            self._run("tc", "qdisc", "replace", "dev", self._device, "root", "netem", *netem)
            self._run("tc", "-n", self.name, "qdisc", "replace", "dev", "there", "root", "netem", *netem)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"tc netem cannot be used here (kernel module sch_netem): {error.stderr}")

    def cut(self, *, cut: bool = True) -> None:
        """Nothing passes the link any more, or everything again. Neither end is told."""
        self._run("ip", "-n", self.name, "link", "set", "there", "down" if cut else "up")

    def remove(self) -> None:
        self._run("ip", "netns", "del", self.name)

    @staticmethod
    def _run(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    try:
        made = Network()
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", None) or error
        pytest.skip(f"network namespaces cannot be used here (root, iproute2): {why}")
    yield made
    made.remove()


class RemoteEngine:
    """An engine process in the namespace. An order to kill it crosses the link, too."""

    def __init__(self, popen: subprocess.Popen[bytes], endpoint: Endpoint, supervisor: str, launcher: Remote) -> None:
        self.popen = popen
        self.pid = popen.pid
        self.endpoint = endpoint
        self.supervisor = supervisor
        self._launcher = launcher
        self.exited: asyncio.Future[str | None] = asyncio.ensure_future(self._wait())

    async def _wait(self) -> str | None:
        status = await exit_of(self.popen)
        while self._launcher.cut:  # noqa: ASYNC110  that it has ended is not known here
            await asyncio.sleep(0.05)
        return None if status == 0 else describe_exit(status)

    def kill(self) -> None:
        if not self._launcher.cut:
            self.popen.kill()

    def close(self) -> None:
        self.popen.kill()


class Remote(Launcher):
    """A launcher of engines in the namespace."""

    on_this_machine = False

    def __init__(self, network: Network) -> None:
        self.network = network
        self.cut = False
        self.engines: list[RemoteEngine] = []
        self._ports = count(20_000)

    async def launch(self, spec: ReplicaSpec, run: int) -> LaunchedEngine:
        keys, supervisor = CurveKeys.make(), free_address(HERE)
        endpoint = Endpoint(engine=tcp_address(THERE, next(self._ports)), gateway_host=HERE)
        own = msgspec.structs.replace(endpoint, keys=keys.for_engine())
        spec = msgspec.structs.replace(spec, endpoint=own, supervisor=supervisor, orphan_timeout_s=10.0)
        command = [sys.executable, "-P", "-m", "kvarn.replica.server", "scripted_engine"]
        command = ["ip", "netns", "exec", self.network.name, *command]
        popen = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: ASYNC220  it returns at once
        assert popen.stdin is not None
        popen.stdin.write(msgspec.json.encode(spec) + b"\n")
        popen.stdin.flush()
        theirs = msgspec.structs.replace(endpoint, keys=keys.for_gateway())
        self.engines.append(RemoteEngine(popen, theirs, supervisor, self))
        return self.engines[-1]


class Replica:
    def __init__(self, launcher: Remote, spec: ReplicaSpec) -> None:
        self.launcher = launcher
        self.supervisor = EngineSupervisor(spec, CONFIG, launcher)
        self.client = ZmqReplicaClient("scripted")
        self.supervisor.subscribe(self.client.update)

    async def answer(self, request: Submit) -> list[int]:
        return [token async for delta in self.client.generate(request) for token in delta.token_ids]


@pytest.fixture
async def replica(network: Network, make_spec: Callable[..., ReplicaSpec]) -> AsyncGenerator[Replica, None]:
    made = Replica(Remote(network), make_spec())
    made.supervisor.start()
    await asyncio.wait_for(made.supervisor.wait_until_ready(), WAIT_S)
    yield made
    made.launcher.cut = False
    network.cut(cut=False)
    made.client.close()
    await made.supervisor.stop()


async def test_a_replica_that_is_cut_off_is_replaced_and_its_process_ends_by_itself(
    network: Network, replica: Replica, submit: Callable[..., Submit]
) -> None:
    (first,) = replica.launcher.engines
    network.cut()
    replica.launcher.cut = True
    with pytest.raises(ReplicaLostError):
        await asyncio.wait_for(replica.answer(submit("cut", max_tokens=40)), WAIT_S)
    await until(lambda: replica.supervisor.lifecycle.run > 1, "another run is launched")
    assert 1 in replica.supervisor.lifecycle.given_up, "nobody knows whether the first still runs"
    await until(lambda: first.popen.poll() is not None, "the engine that nobody speaks to ends")
    network.cut(cut=False)
    replica.launcher.cut = False
    await until(lambda: replica.client.state is ReplicaState.READY, "a new engine is ready")
    assert len(await replica.answer(submit("after", max_tokens=5))) == 5
    await until(lambda: not replica.supervisor.lifecycle.given_up, "the first is known to be gone")
    assert replica.supervisor.lifecycle.state is ReplicaState.READY
