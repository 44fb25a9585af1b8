"""The example for KubeRay: objects that it and Kubernetes take, and a gateway that ends as it should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from chart import ROOT, Object
from custom_resources import SCHEMAS
from kvarn.config.load import load_config

OBJECTS: list[Object] = list(yaml.safe_load_all((ROOT / "deploy" / "kuberay" / "kvarn.yaml").read_text()))
(CLUSTER,) = [each for each in OBJECTS if each["kind"] == "RayCluster"]
HEAD = CLUSTER["spec"]["headGroupSpec"]
GROUPS: dict[str, Object] = {each["groupName"]: each for each in CLUSTER["spec"]["workerGroupSpecs"]}


def _of(kind: str) -> Object:
    (found,) = [each for each in OBJECTS if each["kind"] == kind]
    return found


def _container(group: Object) -> Object:
    (container,) = group["template"]["spec"]["containers"]
    return dict(container)


def test_kubernetes_and_kuberay_take_each_object() -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="pip install 'kvarn[chart]'")
    for each in OBJECTS:
        if each is CLUSTER:
            jsonschema.validate(each, SCHEMAS["RayCluster"])
        else:
            kubernetes.validate(each, "1.37", strict=True)
    for group in (HEAD, *GROUPS.values()):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **group["template"]}
        kubernetes.validate(pod, "1.37", strict=True)


def test_kvarn_takes_the_configuration_and_looks_for_engines_on_the_cluster(tmp_path: Path) -> None:
    file = tmp_path / "kvarn.yaml"
    file.write_text(_of("ConfigMap")["data"]["kvarn.yaml"])
    config = load_config(file)
    assert config.fleet.launcher == "ray" and config.gateway.port == 8000
    pod = GROUPS["gateway"]["template"]["spec"]
    assert config.gateway.shutdown_delay_s >= 5
    needed_s = config.gateway.shutdown_delay_s + config.gateway.drain_timeout_s + 15
    assert pod["terminationGracePeriodSeconds"] >= needed_s


def test_ray_is_the_release_that_kvarn_is_tested_against() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert CLUSTER["spec"]["rayVersion"] == pins["ray"]


def test_engines_run_only_where_gpus_are() -> None:
    assert HEAD["rayStartParams"]["num-cpus"] == GROUPS["gateway"]["rayStartParams"]["num-cpus"] == "0"
    assert _container(GROUPS["gpu"])["resources"]["limits"]["nvidia.com/gpu"] == "1"
    wanted = load_models()[0]["autoscale"]["max_replicas"]
    assert wanted <= GROUPS["gpu"]["maxReplicas"]


def load_models() -> list[Any]:
    return list(yaml.safe_load(_of("ConfigMap")["data"]["kvarn.yaml"])["models"])


def test_the_service_leads_to_the_gateway_and_only_its_port_is_open_to_others() -> None:
    assert _of("Service")["spec"]["selector"] == {
        "ray.io/cluster": CLUSTER["metadata"]["name"],
        "ray.io/group": "gateway",
    }
    within, others = _of("NetworkPolicy")["spec"]["ingress"]
    assert within["from"][0]["podSelector"]["matchLabels"] == {"ray.io/cluster": CLUSTER["metadata"]["name"]}
    assert [each["port"] for each in others["ports"]] == [8000]


_GATEWAY = """\
import signal, sys
def end(*_):
    open({told!r}, "a").write("told\\n")
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
print("serving", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("first", ["pod", "node"])
def test_a_gateway_that_is_told_to_end_or_has_lost_its_node_drains_once_and_ends_the_pod(
    first: str, tmp_path: Path
) -> None:
    """The pod's command, with programs that stand for Ray's node and for the gateway."""
    (script,) = _container(GROUPS["gateway"])["args"]
    told, gateway, node = (tmp_path / name for name in ("told", "kvarn", "node"))
    gateway.write_text(f"#!{sys.executable}\n{_GATEWAY.format(told=str(told))}")
    gateway.chmod(0o755)
    os.mkfifo(node)
    ray = f"cat {node}"  # ends when the other end of the pipe is closed
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "KUBERAY_GEN_RAY_START_CMD": ray}
    pod = subprocess.Popen(["bash", "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
    with node.open("w") as end:
        assert pod.stdout is not None and pod.stdout.readline() == "serving\n"
        if first == "pod":
            pod.send_signal(signal.SIGTERM)
        else:
            end.close()
        assert pod.wait(60) == 7
    assert told.read_text() == "told\n"
