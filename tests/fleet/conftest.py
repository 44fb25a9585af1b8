from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from kvarn.config.engine import EngineConfig
from kvarn.config.model import ModelConfig
from kvarn.config.replica import ReplicaConfig
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.replica.addresses import engine_address
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.replica.spec import ReplicaSpec
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams

ENGINES = Path(__file__).parent / "engines"
MakeReplica = Callable[..., "RunningReplica"]
Attach = Callable[[Any, int], ZmqReplicaClient]


class RunningReplica(ZmqReplicaClient):
    """A supervised engine process and a client of it."""

    def __init__(self, spec: ReplicaSpec, config: ReplicaConfig) -> None:
        super().__init__("scripted")
        self.supervisor = EngineSupervisor(spec, config)
        self.supervisor.subscribe(self.update)
        self.start = self.supervisor.start
        self.launch = self.supervisor.launch
        self.wait_until_ready = self.supervisor.wait_until_ready
        self.stop = self.supervisor.stop

    @property
    def pid(self) -> int:
        assert self.supervisor.pid is not None
        return self.supervisor.pid

    @property
    def sockets(self) -> str:
        """Directory of the engine's sockets."""
        assert self.supervisor.status.endpoint is not None
        return self.supervisor.status.endpoint.directory


@pytest.fixture(autouse=True)
def _engines_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine process inherits the path under which it finds the scripted engine."""
    monkeypatch.setenv("PYTHONPATH", str(ENGINES))


@pytest.fixture
def make_spec() -> Callable[..., ReplicaSpec]:
    def make(engine: dict[str, Any] | None = None, **script: Any) -> ReplicaSpec:
        model = ModelConfig(name="scripted", path="scripted", engine=EngineConfig(**(engine or {})))
        return ReplicaSpec(
            model=model.model_dump_json(),
            directory=json.dumps(script),
            heartbeat_interval_s=0.1,
            log_level="warning",
            factory="scripted_engine:build",
        )

    return make


@pytest.fixture
async def make_replica(make_spec: Callable[..., ReplicaSpec]) -> AsyncGenerator[MakeReplica, None]:
    replicas: list[RunningReplica] = []

    def make(config: dict[str, Any] | None = None, **script: Any) -> RunningReplica:
        settings = {"heartbeat_interval_s": 0.1, "heartbeat_timeout_s": 30.0, "restart_backoff_s": 0.05}
        replica = RunningReplica(make_spec(**script), ReplicaConfig(**(settings | (config or {}))))
        replicas.append(replica)
        replica.start()
        return replica

    yield make
    for replica in replicas:
        await replica.stop()


@pytest.fixture
def make_unstarted(make_spec: Callable[..., ReplicaSpec]) -> MakeReplica:
    return lambda **script: RunningReplica(make_spec(**script), ReplicaConfig())


@pytest.fixture
def send_raw() -> Callable[[RunningReplica, bytes], None]:
    """Send bytes to an engine, as any process of this user may."""

    def send(replica: RunningReplica, *payloads: bytes) -> None:
        with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
            socket.connect(engine_address(replica.sockets))
            for payload in payloads:
                socket.send(payload)

    return send


@pytest.fixture
def submit() -> Callable[..., Submit]:
    def make(request_id: str = "r", prompt: list[int] | None = None, max_tokens: int = 8, **sampling: Any) -> Submit:
        return Submit(
            request_id=request_id,
            prompt_token_ids=[1] if prompt is None else prompt,
            sampling=SamplingParams(seed=1, temperature=0.0, max_tokens=max_tokens, **sampling),
        )

    return make


@pytest.fixture
async def attach() -> AsyncGenerator[Attach, None]:
    """Other gateway processes' clients; here they live in the same process, over sockets of their own."""
    made: list[ZmqReplicaClient] = []

    def make(replica: Any, gateway: int) -> ZmqReplicaClient:
        attached = ZmqReplicaClient("scripted", gateway)
        attached.update(replica.supervisor.status)
        made.append(attached)
        return attached

    yield make
    for attached in made:
        attached.close()
