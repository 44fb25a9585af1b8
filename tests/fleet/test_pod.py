"""A pod of an engine: its description, what its status says, and its first process."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable

import msgspec
import pytest

from kvarn.config.kubernetes import KubernetesConfig
from kvarn.fleet.kubernetes.manifest import EngineKeys, PodArguments, pod_manifest, pod_name
from kvarn.fleet.kubernetes.objects import Pod
from kvarn.fleet.kubernetes.pod import heartbeats
from kvarn.fleet.placement.packing import GIB, Needs
from kvarn.replica.endpoint import CurveKeys, Endpoint, free_address
from kvarn.replica.spec import ReplicaSpec
from kvarn.replica.transport import ClientTransport
from kvarn.wire.messages import FromEngine
from kvarn.wire.supervision import Heartbeat

HOST = "127.0.0.1"


@pytest.fixture
def spec(make_spec: Callable[..., ReplicaSpec]) -> Callable[[], ReplicaSpec]:
    return lambda: msgspec.structs.replace(make_spec(), replica="m/0")


def test_a_pod_asks_for_what_its_model_needs_and_has_no_secret_and_no_access(spec: Callable[[], ReplicaSpec]) -> None:
    config = KubernetesConfig(
        node_selector={"pool": "gpu"},
        tolerations=({"key": "gpu", "operator": "Exists"},),
        claims={"/models": "checkpoints"},
        env={"HF_HOME": "/models/hub"},
    )
    told = PodArguments(name="p", port=config.engine_port, key_file=config.key_file, spec=spec())
    pod = pod_manifest(config, told, 3, Needs(8 * GIB, 4.0, gpus=2), "kvarn:1")
    (container,) = pod["spec"]["containers"]
    wanted = {"memory": str(8 * GIB), "cpu": "4", "nvidia.com/gpu": "2"}
    assert container["resources"] == {"requests": wanted, "limits": {"nvidia.com/gpu": "2"}}
    assert pod["spec"]["restartPolicy"] == "Never" and not pod["spec"]["automountServiceAccountToken"]
    assert pod["spec"]["nodeSelector"] == {"pool": "gpu"} and pod["spec"]["tolerations"] == [*config.tolerations]
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] and security["runAsNonRoot"] and not security["allowPrivilegeEscalation"]
    assert {"name": "HF_HOME", "value": "/models/hub"} in container["env"]
    assert [each["mountPath"] for each in container["volumeMounts"]] == [
        "/tmp",
        "/dev/shm",
        "/etc/kvarn/engines",
        "/models",
    ]
    assert "secret" not in json.dumps(container["env"]).replace("engine_secret", "").replace("gateway_secret", "")
    names = [each["name"] for each in pod["spec"]["volumes"]]
    assert len(set(names)) == len(names) == len(container["volumeMounts"])


def test_a_pod_is_valid_by_kubernetes_own_schema(spec: Callable[[], ReplicaSpec]) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="pip install 'kvarn[chart]'")
    config = KubernetesConfig(
        tolerations=({"key": "gpu", "operator": "Exists"},),
        claims={"/models": "checkpoints"},
        limits={"cpu": "8"},
        runtime_class="nvidia",
    )
    told = PodArguments(name="p", port=config.engine_port, key_file=config.key_file, spec=spec())
    kubernetes.validate(pod_manifest(config, told, 3, Needs(8 * GIB, 4.5, gpus=2), "kvarn:1"), "1.37", strict=True)


def test_what_a_pod_is_told_is_not_expanded_by_kubernetes(spec: Callable[[], ReplicaSpec]) -> None:
    model = spec().model_config.model_copy(update={"chat_template": "{{ '$$' }} $(HOME) ü"})
    given = msgspec.structs.replace(spec(), model=model.model_dump_json())
    told = PodArguments(name="p", port=1, key_file="/k/key", spec=given)
    assert "$" not in told.as_text()
    assert msgspec.json.decode(told.as_text(), type=PodArguments) == told


def test_pods_of_models_on_spot_capacity_go_to_its_nodes(spec: Callable[[], ReplicaSpec]) -> None:
    config = KubernetesConfig(
        node_selector={"pool": "gpu"}, spot_node_selector={"spot": "true"}, spot_tolerations=({"key": "spot"},)
    )
    model = spec().model_config.model_copy(update={"spot": "batch"})
    for given, selector, tolerations in (
        (spec(), {"pool": "gpu"}, []),
        (
            msgspec.structs.replace(spec(), model=model.model_dump_json()),
            {"pool": "gpu", "spot": "true"},
            [{"key": "spot"}],
        ),
    ):
        told = PodArguments(name="p", port=1, key_file="/k/key", spec=given)
        made = pod_manifest(config, told, 1, Needs(GIB), "kvarn:1")["spec"]
        assert (made["nodeSelector"], made["tolerations"]) == (selector, tolerations)


def test_names_of_pods_are_host_names_and_differ() -> None:
    replicas = ("Qwen/Qwen3-0.6B/0", "Qwen/Qwen3-0.6B/1", "qwen/qwen3-0.6b/0", "模型/0", "m" * 300 + "/0")
    names = {pod_name(server, each, 1_795_000_000) for server in ("a", "b") for each in replicas}
    assert len(names) == 10
    assert all(len(name) <= 63 and name.replace("-", "").isalnum() and name.isascii() for name in names)


def test_keys_follow_from_the_shared_one_and_differ_from_pod_to_pod() -> None:
    keys = EngineKeys(b"k" * 40)
    assert keys.of("a") == EngineKeys(b"k" * 40).of("a")
    found = [keys.of("a"), keys.of("b"), EngineKeys(b"l" * 40).of("a")]
    assert len({secret for each in found for secret in (each.engine_secret, each.gateway_secret)}) == 6


def test_the_notice_of_a_pod_that_was_told_earlier_is_what_is_left_of_it() -> None:
    told = {"deletionTimestamp": "1970-01-01T00:01:40Z", "deletionGracePeriodSeconds": 60}
    pod = msgspec.convert({"metadata": told}, Pod)
    assert [pod.notice_s(now) for now in (40, 70, 200)] == [60, 30, 0]
    assert pod.notice_s(0) == 60, "the API server's clock may be ahead"


async def test_a_supervisor_hears_of_the_work_while_a_checkpoint_is_downloaded(
    spec: Callable[[], ReplicaSpec],
) -> None:
    keys, heard, told = CurveKeys.make(), threading.Event(), list[FromEngine]()

    def handle(message: FromEngine) -> None:
        told.append(message)
        heard.set()

    endpoint = Endpoint(engine=free_address(HOST), gateway_host=HOST, keys=keys.for_gateway())
    supervisor = ClientTransport(endpoint, free_address(HOST), handle, lambda error: None, watched=False)
    given = msgspec.structs.replace(spec(), supervisor=supervisor.address, heartbeat_interval_s=0.01)

    def download() -> bool:
        with heartbeats(given, keys.for_engine()):
            return heard.wait(60)

    try:
        assert await asyncio.to_thread(download)
    finally:
        supervisor.close()
    assert isinstance(told[0], Heartbeat) and told[0].work > 0
