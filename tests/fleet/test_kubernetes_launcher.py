"""Replicas as pods: against an API server of the few verbs that the launcher uses. Most pods here are objects only."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from conditions import collect, until
from kubernetes_api import OWN_POD, ROLE, FakeKubernetes
from kvarn.config.kubernetes import KubernetesConfig
from kvarn.config.load import ConfigError
from kvarn.config.replica import ReplicaConfig
from kvarn.config.schema import KvarnConfig
from kvarn.fleet.kubernetes.launcher import KubernetesLauncher
from kvarn.fleet.kubernetes.manifest import pod_name
from kvarn.fleet.placement.packing import GIB, Needs
from kvarn.fleet.placement.places import LaunchError
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.replica.client.protocol import ReplicaState
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.replica.spec import ReplicaSpec
from kvarn.wire.messages import Submit

CONFIG = ReplicaConfig(heartbeat_interval_s=0.1, heartbeat_timeout_s=5.0, restart_backoff_s=0.05)
MakeLauncher = Callable[..., KubernetesLauncher]
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncGenerator[FakeKubernetes, None]:
    made = FakeKubernetes(tmp_path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def make_launcher(cluster: FakeKubernetes) -> AsyncGenerator[MakeLauncher, None]:
    made: list[KubernetesLauncher] = []

    def make(**settings: Any) -> KubernetesLauncher:
        config = cluster.config.model_copy(update=settings)
        launcher = KubernetesLauncher(config, lambda spec: Needs(GIB, 2.0, gpus=2, gpu_share=0.9))
        launcher.start()
        made.append(launcher)
        return launcher

    yield make
    for each in made:
        await each.stop()


@pytest.fixture
def spec(make_spec: Callable[..., ReplicaSpec]) -> Callable[..., ReplicaSpec]:
    return lambda replica="m/0", **script: msgspec.structs.replace(make_spec(**script), replica=replica)


async def launched(cluster: FakeKubernetes, launcher: KubernetesLauncher, spec: ReplicaSpec, run: int = 1) -> Any:
    """Launch, with a node that starts the process at once."""
    launch = asyncio.create_task(launcher.launch(spec, run))
    name = pod_name(cluster.config.server, spec.replica, run)
    await until(lambda: name in cluster.pods)
    cluster.run(name)
    return name, await asyncio.wait_for(launch, 60)


def test_settings_that_cannot_work_are_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (tmp_path / "key").write_text("short")
    needs = lambda spec: Needs(GIB)  # noqa: E731
    with pytest.raises(ConfigError, match="fewer than 32"):
        KubernetesLauncher(KubernetesConfig(key_file=str(tmp_path / "key")), needs)
    with pytest.raises(ConfigError, match=r"key_file.*cannot be read"):
        KubernetesLauncher(KubernetesConfig(key_file=str(tmp_path / "none")), needs)
    (tmp_path / "key").write_text("k" * 32)
    with pytest.raises(ConfigError, match="is no pod"):
        KubernetesLauncher(KubernetesConfig(key_file=str(tmp_path / "key")), needs)


# Launching ---------------------------------------------------------------------------------------------------------


async def test_a_pod_that_runs_is_an_engine_and_its_end_is_told(
    cluster: FakeKubernetes, make_launcher: MakeLauncher, spec: Callable[..., ReplicaSpec]
) -> None:
    launcher = make_launcher()
    name, engine = await launched(cluster, launcher, spec("m/v2/0"))
    assert engine.endpoint.engine == f"tcp://{cluster.pods[name]['status']['podIP']}:5600"
    assert cluster.pods[name]["metadata"]["annotations"]["kvarn.io/replica"] == "m/v2/0"
    assert not engine.exited.done() and not engine.announced.done()
    ended = {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    cluster.set_status(name, phase="Failed", containerStatuses=[ended])
    assert "OOMKilled" in await asyncio.wait_for(engine.exited, 60)
    await until(lambda: not cluster.pods, "the pod is removed")
    assert set(cluster.verbs) <= set(ROLE)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"phase": "Succeeded"}, None),
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}, "Evicted: The"),
        ({"phase": "Failed", "exit": 1}, "ended with status 1"),
        ({"phase": "Failed", "exit": 139}, "SIGSEGV"),
        (
            {"phase": "Failed", "exit": 1, "log": "Traceback\nCheckpointError: no such model\n"},
            "1: CheckpointError: no",
        ),
    ],
)
async def test_the_reason_of_an_end_is_told(
    cluster: FakeKubernetes,
    make_launcher: MakeLauncher,
    spec: Callable[..., ReplicaSpec],
    status: dict[str, Any],
    reason: str | None,
) -> None:
    name, engine = await launched(cluster, make_launcher(), spec())
    code = status.pop("exit", None)
    if code is not None:
        ended = {"exitCode": code, "reason": "Error", "message": status.pop("log", "")}
        status["containerStatuses"] = [{"state": {"terminated": ended}}]
    cluster.set_status(name, **status)
    found = await asyncio.wait_for(engine.exited, 60)
    assert found is None if reason is None else reason in found


async def test_a_pod_that_finds_no_node_says_what_it_waits_for(
    cluster: FakeKubernetes, make_launcher: MakeLauncher, spec: Callable[..., ReplicaSpec]
) -> None:
    told: list[str] = []
    launch = asyncio.create_task(make_launcher().launch(spec(), 1, told.append))
    await until(lambda: bool(cluster.pods))
    cluster.set_status(next(iter(cluster.pods)), conditions=[UNSCHEDULABLE])
    await until(lambda: told[-1:] == [f"no node has room for it: {UNSCHEDULABLE['message']}"])
    launch.cancel()


async def test_a_pod_that_does_not_run_in_time_is_given_up_and_removed(
    cluster: FakeKubernetes, make_launcher: MakeLauncher, spec: Callable[..., ReplicaSpec]
) -> None:
    with pytest.raises(LaunchError, match=r"did not run after 0\.05 s: \w+"):
        await make_launcher(place_timeout_s=0.05).launch(spec(), 1)
    await until(lambda: not cluster.pods, "nothing is left behind")


async def test_an_image_that_cannot_be_pulled_ends_the_launch_at_once(
    cluster: FakeKubernetes, make_launcher: MakeLauncher, spec: Callable[..., ReplicaSpec]
) -> None:
    supervisor = EngineSupervisor(spec(), CONFIG, make_launcher())
    supervisor.start()
    await until(lambda: bool(cluster.pods))
    waiting = {"reason": "ErrImagePull", "message": "manifest unknown"}
    cluster.set_status(next(iter(cluster.pods)), containerStatuses=[{"state": {"waiting": waiting}}])
    await until(
        lambda: "ErrImagePull: manifest unknown" in supervisor.status.stage, "the replica says what it waits for"
    )
    assert supervisor.status.state is ReplicaState.STARTING
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    cluster.set_status(next(iter(cluster.pods)), containerStatuses=[{"state": {"waiting": waiting}}])
    await until(lambda: supervisor.failure is not None)
    assert supervisor.failure is not None and "ImagePullBackOff: Back-off pulling image" in supervisor.failure
    await until(lambda: any(not name.endswith("-1") for name in cluster.pods), "it is tried again, as another pod")
    await supervisor.stop()


@pytest.mark.parametrize(
    ("status", "message"),
    [(403, "exceeded quota: gpus"), (404, "namespace not found"), (409, "quota was modified")],
)
async def test_what_the_api_server_refuses_is_told(
    cluster: FakeKubernetes,
    make_launcher: MakeLauncher,
    spec: Callable[..., ReplicaSpec],
    status: int,
    message: str,
) -> None:
    cluster.refuses = status, message
    with pytest.raises(LaunchError, match=message):
        await make_launcher().launch(spec(), 1)


async def test_image_and_address_are_those_of_the_gateways_own_pod(
    cluster: FakeKubernetes,
    make_launcher: MakeLauncher,
    spec: Callable[..., ReplicaSpec],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platform.node", lambda: OWN_POD)
    own = {"metadata": {"name": OWN_POD, "labels": {}}, "spec": {"containers": [{"image": "own:7"}]}}
    own["spec"]["imagePullSecrets"] = [{"name": "registry"}]
    cluster.pods[OWN_POD] = own | {"status": {"phase": "Running", "podIP": "127.0.0.1"}}
    name, engine = await launched(cluster, make_launcher(image=None, listen_address=None), spec())
    assert cluster.pods[name]["spec"]["containers"][0]["image"] == "own:7"
    assert cluster.pods[name]["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert engine.supervisor.startswith("tcp://127.0.0.1:")


# Following -----------------------------------------------------------------------------------------------------------


async def test_a_lost_watch_is_begun_again_and_misses_nothing(
    cluster: FakeKubernetes, make_launcher: MakeLauncher, spec: Callable[..., ReplicaSpec]
) -> None:
    launcher = make_launcher()
    names, engines = zip(*[await launched(cluster, launcher, spec(f"m/{number}")) for number in range(3)], strict=True)
    cluster.end_watches()
    cluster.remove(names[0])
    assert await asyncio.wait_for(engines[0].exited, 60) == "its pod was deleted"
    cluster.remove(names[1])
    cluster.end_watches(forget=True)
    assert await asyncio.wait_for(engines[1].exited, 60) in ("its pod was deleted", "its pod is gone")
    cluster.set_status(names[2], phase="Succeeded")
    assert await asyncio.wait_for(engines[2].exited, 60) is None


async def test_a_killed_engine_is_gone_when_its_node_says_so(
    cluster: FakeKubernetes, make_launcher: MakeLauncher, spec: Callable[..., ReplicaSpec]
) -> None:
    name, engine = await launched(cluster, make_launcher(), spec())
    engine.kill()
    await until(lambda: "deletionTimestamp" in cluster.pods[name]["metadata"])
    assert cluster.pods[name]["metadata"]["deletionGracePeriodSeconds"] == 1
    assert not engine.exited.done() and not engine.announced.done()
    cluster.remove(name)
    await asyncio.wait_for(engine.exited, 60)


async def test_an_engine_whose_pod_went_unnoticed_is_gone_once_it_is_killed(
    cluster: FakeKubernetes, make_launcher: MakeLauncher, spec: Callable[..., ReplicaSpec]
) -> None:
    name, engine = await launched(cluster, make_launcher(), spec())
    del cluster.pods[name]
    engine.kill()
    assert await asyncio.wait_for(engine.exited, 60) == "its pod is gone"


async def test_a_pod_that_could_not_be_deleted_is_deleted_later(
    cluster: FakeKubernetes, make_launcher: MakeLauncher, spec: Callable[..., ReplicaSpec], caplog: Any
) -> None:
    name, engine = await launched(cluster, make_launcher(), spec())
    cluster.refuses_deletes = True
    engine.kill()
    await until(lambda: "cannot be deleted" in caplog.text)
    cluster.refuses_deletes = False
    await until(lambda: "deletionTimestamp" in cluster.pods[name]["metadata"])


async def test_a_pod_that_was_made_though_the_answer_was_lost_is_deleted(
    cluster: FakeKubernetes, make_launcher: MakeLauncher, spec: Callable[..., ReplicaSpec]
) -> None:
    launcher = make_launcher()
    await until(lambda: "watch" in cluster.verbs)
    cluster.loses_answers = True
    with pytest.raises(LaunchError, match="timed out"):
        await launcher.launch(spec(), 1)
    await until(lambda: "delete" in cluster.verbs and not cluster.pods)


async def test_an_eviction_is_announced_with_its_notice(
    cluster: FakeKubernetes, make_launcher: MakeLauncher, spec: Callable[..., ReplicaSpec]
) -> None:
    name, engine = await launched(cluster, make_launcher(), spec())
    cluster.announce_end(name, 3000)
    assert 2900 < await asyncio.wait_for(engine.announced, 60) <= 3000


async def test_a_gateway_takes_over_its_own_pods_and_no_others_and_removes_what_is_left(
    cluster: FakeKubernetes, make_launcher: MakeLauncher, spec: Callable[..., ReplicaSpec]
) -> None:
    first = make_launcher()
    name, engine = await launched(cluster, first, spec(), run=4)
    pending = asyncio.create_task(first.launch(spec("m/1"), 5))
    await until(lambda: len(cluster.pods) == 2)
    (unstarted,) = cluster.pods.keys() - {name}
    dead = await launched(cluster, first, spec("m/2"), run=6)
    pending.cancel()
    await first.stop()
    cluster.set_status(dead[0], phase="Failed")
    foreign = json.loads(json.dumps(cluster.pods[name]))
    foreign["metadata"] |= {"name": "foreign", "labels": {"kvarn.io/server": "another"}}
    unknown = json.loads(json.dumps(cluster.pods[name]))
    unknown["metadata"] |= {"name": "unknown", "annotations": {}}
    cluster.pods |= {"foreign": foreign, "unknown": unknown}

    second = make_launcher()
    assert await second.replicas() == {"m/0", "m/1"}
    await until(lambda: dead[0] not in cluster.pods, "what ended is removed")
    found = await second.adopt("m/0")
    assert list(found) == [4]
    assert found[4].endpoint == engine.endpoint, "the keys are known again"
    assert await second.adopt("m/1") == {}
    await until(lambda: unstarted not in cluster.pods, "nobody waited for it")
    await second.end("m/0")
    await until(lambda: "deletionTimestamp" in cluster.pods[name]["metadata"])
    assert "deletionTimestamp" not in foreign["metadata"] and "deletionTimestamp" not in unknown["metadata"]


# A real engine process --------------------------------------------------------------------------------------------


async def test_an_engine_in_a_pod_answers_over_tcp_and_drains_when_it_is_evicted(
    tmp_path: Path, spec: Callable[..., ReplicaSpec], submit: Callable[..., Submit]
) -> None:
    cluster = FakeKubernetes(tmp_path, runs_processes=True)
    await cluster.start()
    launcher = KubernetesLauncher(cluster.config, lambda spec: Needs(GIB))
    launcher.start()
    supervisor = EngineSupervisor(spec(step_s=0.01), CONFIG, launcher)
    client = ZmqReplicaClient("m")
    supervisor.subscribe(client.update)
    supervisor.start()
    try:
        await until(lambda: client.state is ReplicaState.READY)
        assert len(await collect(client, submit(max_tokens=5))) == 5
        (name,) = cluster.pods
        running = asyncio.create_task(collect(client, submit("r", prompt=[1], max_tokens=80)))
        await until(lambda: client.stats.running == 1)
        cluster.announce_end(name, 60)
        await until(lambda: client.state is ReplicaState.DRAINING)
        assert supervisor.lifecycle.drains_by_itself
        assert await running == list(range(2, 82))
        await until(lambda: supervisor.lifecycle.state is ReplicaState.GONE)
        assert not cluster.pods, "it is left to a controller to replace it"
    finally:
        client.close()
        await supervisor.stop()
        await launcher.stop()
        await cluster.stop()


# Documentation ------------------------------------------------------------------------------------------------------


def documented(page: str) -> list[Any]:
    """The YAML blocks of a page of docs/operate."""
    text = (Path(__file__).parents[2] / "docs" / "operate" / page).read_text(encoding="utf-8")
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]


def test_the_pages_settings_are_valid_and_its_role_has_the_verbs_that_are_used() -> None:
    settings, role, secret = documented("kubernetes_launcher.md")
    config = KvarnConfig.model_validate(settings).fleet.kubernetes
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": [*ROLE]}]
    assert secret["metadata"]["name"] == config.key_secret and set(secret["stringData"]) == {Path(config.key_file).name}
    (spot,) = documented("spot.md")
    assert KvarnConfig.model_validate(spot).models[1].spot == "batch"
