"""The Helm chart: Kubernetes takes what it renders, and its objects agree with one another and with Kvarn."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from chart import CHART, EXAMPLES, ROOT, VALUE_SETS, Object, merged, name_of, render, render_set
from custom_resources import SCHEMAS
from kubelet import PodTemplate
from kvarn.fleet.kubernetes.manifest import SERVER_LABEL

KUBERNETES = ("1.37", "1.30")
"""The newest release whose schemas we have, and the oldest that the chart says it runs on."""
GROUPS = ("available.yaml", "groups.yaml")


@pytest.fixture(scope="module")
def kubernetes() -> Any:
    """The strict schemas of Kubernetes' own objects, each read once."""
    found = pytest.importorskip("kubernetes_validate", reason="pip install 'kvarn[chart]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(found.utils, "schema_contents", cache(found.utils.schema_contents))
        yield found


@pytest.mark.parametrize("release", KUBERNETES)
@pytest.mark.parametrize("values", VALUE_SETS)
def test_kubernetes_takes_each_object(kubernetes: Any, values: str, release: str) -> None:
    objects = render_set(values).objects
    assert objects
    for each in objects:
        if (schema := SCHEMAS.get(each["kind"])) is not None:
            jsonschema.validate(each, schema)
        else:
            kubernetes.validate(each, release, strict=True)


@pytest.mark.parametrize("values", VALUE_SETS)
def test_helm_finds_nothing_to_object_to(values: str) -> None:
    helm = pytest.importorskip("helm_python", reason="pip install 'kvarn[chart]'")
    report = helm.lint(CHART, merged(*VALUE_SETS[values]), strict=True, namespace="llm")
    warnings = [each["error"] for each in report["messages"] if each["severity"] > 1]
    assert not report["errors"] and not warnings


def test_what_is_packaged_renders_alike_without_the_folders_around_it(tmp_path) -> None:
    helm = pytest.importorskip("helm_python", reason="pip install 'kvarn[chart]'")
    values = merged(*VALUE_SETS["available"])
    archive = helm.package(CHART, destination=tmp_path)
    assert render(values, path=archive).objects == render(values).objects
    with helm.Chart.load(archive) as chart:
        assert not [each["name"] for each in chart.files if each["name"].endswith(".py")]


def test_one_command_installs_a_server_and_its_address_and_what_guards_them() -> None:
    kinds = sorted(each["kind"] for each in render().objects)
    assert kinds == ["ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount", "StatefulSet"]


@pytest.mark.parametrize(("values", "count"), [("default", None), ("gpu", 1)])
def test_a_gpu_is_asked_for_where_one_is_needed(values: str, count: int | None) -> None:
    ((_, pod, container),) = render_set(values).containers()
    assert container["resources"]["limits"].get("nvidia.com/gpu") == count
    assert ("nodeSelector" in pod) is (count is not None)


@pytest.mark.parametrize("values", ["groups", "groups-autoscaled"])
def test_separate_gateways_ask_the_pods_that_there_are_by_their_own_names(values: str) -> None:
    rendered = render_set(values)
    (gateway,) = rendered.of("Deployment")
    services = {each["metadata"]["name"]: each["spec"] for each in rendered.of("Service")}
    limits = {each["metadata"]["name"]: each["spec"]["maxReplicaCount"] for each in rendered.of("ScaledObject")}
    models = {each["name"]: each["external"] for each in rendered.settings(gateway)["models"]}
    assert models.keys() == {"large", "small"}
    for engines in rendered.of("StatefulSet"):
        name, settings = engines["metadata"]["name"], rendered.settings(engines)
        service = services[engines["spec"]["serviceName"]]
        assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"]
        hosts = [f"{name}-{pod}.{name}.llm.svc" for pod in range(limits.get(name) or engines["spec"]["replicas"])]
        (model,) = settings["models"]
        assert models[model["name"]]["base_url"] == [
            f"http://{host}:{settings['gateway']['port']}/v1" for host in hosts
        ]
        assert "aliases" not in model and not settings["console"]["enabled"]


def test_a_model_of_two_classes_is_served_by_the_pods_of_both() -> None:
    group = {"models": [{"name": "chat", "path": "/models/chat"}]}
    rendered = render(
        merged(
            "available.yaml", {"gateway": {"separate": True}, "models": [], "engineGroups": {"a": group, "b": group}}
        )
    )
    (model,) = rendered.settings(rendered.of("Deployment")[0])["models"]
    assert [url.partition(".")[0] for url in model["external"]["base_url"]] == [
        f"http://kvarn-{group}-{pod}" for group in ("a", "b") for pod in (0, 1)
    ]


def test_gateways_and_engines_read_the_same_key_which_no_object_but_its_secret_holds() -> None:
    rendered = render_set("groups")
    (secret,) = rendered.of("Secret")
    assert len(secret["data"]["key"]) >= 48
    assert json.dumps(rendered.objects).count(secret["data"]["key"]) == 1
    for workload, pod, container in rendered.containers():
        (volume,) = [each for each in pod["volumes"] if each.get("secret", {}).get("secretName") == name(secret)]
        (mount,) = [each for each in container["volumeMounts"] if each["name"] == volume["name"]]
        file = f"{mount['mountPath']}/key"
        told = {each.get("value") for each in container["env"]}
        told |= {each.get("external", {}).get("api_key_file") for each in rendered.settings(workload)["models"]}
        assert file in told, name_of(workload)
        has_urls = any(each.get("secret", {}).get("secretName") == "kvarn-urls" for each in pod["volumes"])
        assert has_urls is (workload["kind"] == "Deployment"), "engines know nothing of the database"


def name(thing: Object) -> str:
    return str(thing["metadata"]["name"])


def test_the_launcher_may_do_what_its_page_says_and_has_the_key_that_its_pods_mount() -> None:
    rendered = render_set("launcher")
    page = (ROOT / "docs" / "operate" / "kubernetes_launcher.md").read_text()
    (described,) = [
        yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "Role" in each
    ]
    (role,) = rendered.of("Role")
    (allowed,), (wanted,) = role["rules"], described["rules"]
    assert {key: sorted(each) for key, each in allowed.items()} == {key: sorted(each) for key, each in wanted.items()}
    ((workload, pod, container),) = rendered.containers()
    cluster = rendered.settings(workload)["fleet"]["kubernetes"]
    secret = {each["name"]: each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    mounts = {each["mountPath"]: secret.get(each["name"]) for each in container["volumeMounts"]}
    assert mounts[str(Path(cluster["key_file"]).parent)] == cluster["key_secret"]
    (made,) = rendered.of("Secret")
    assert name(made) == cluster["key_secret"] and Path(cluster["key_file"]).name in made["data"]
    peers = [
        rule["from"] for each in rendered.of("NetworkPolicy") for rule in each["spec"]["ingress"] if "from" in rule
    ]
    assert [{"podSelector": {"matchLabels": {SERVER_LABEL: cluster["server"]}}}] in peers


def test_the_kubelet_of_our_tests_asks_what_the_chart_has_kubelets_ask() -> None:
    ((_, _, container),) = render().containers()
    for field in fields(PodTemplate):
        if field.name in ("startup", "readiness", "liveness"):
            assert container[f"{field.name}Probe"]["httpGet"]["path"] == field.default.path


def test_autoscaled_servers_measure_what_their_models_need() -> None:
    rendered = render_set("autoscaled")
    (server,) = rendered.of("StatefulSet")
    assert [each["autoscale"] for each in rendered.settings(server)["models"]] == [
        {"min_replicas": 1, "max_replicas": 1}
    ]


def test_the_rules_and_boards_are_those_of_the_repository() -> None:
    rendered = render_set("available")
    (rules,) = rendered.of("PrometheusRule")
    assert rules["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/kvarn.rules.yml").read_text())
    files = {f"kvarn-{path.name}": path.read_text() for path in (ROOT / "deploy/grafana").glob("*.json")}
    (found,) = [each["data"] for each in rendered.of("ConfigMap") if "grafana_dashboard" in each["metadata"]["labels"]]
    assert {key: text.rstrip() for key, text in found.items()} == {key: text.rstrip() for key, text in files.items()}


def test_prometheus_knows_the_servers_by_the_job_that_the_rules_are_about() -> None:
    rendered = render_set("groups")
    for monitor in rendered.of("ServiceMonitor"):
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "kvarn"}]
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        assert [each for each in rendered.of("Service") if wanted <= each["metadata"]["labels"].items()]


def test_prometheus_takes_a_certificate_that_does_not_name_the_pods_address() -> None:
    (monitor,) = render_set("tls").of("ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["scheme"] == "https" and endpoint["tlsConfig"] == {"insecureSkipVerify": True}


def test_engines_that_kvarn_starts_go_where_the_values_say() -> None:
    values = {"runtimeClassName": "nvidia", "nodeSelector": {"pool": "gpu"}, "tolerations": [{"key": "gpu"}]}
    rendered = render(merged("launcher.yaml", values))
    ((workload, pod, _),) = rendered.containers()
    cluster = rendered.settings(workload)["fleet"]["kubernetes"]
    assert cluster["runtime_class"] == "nvidia" and cluster["tolerations"] == [{"key": "gpu"}]
    assert cluster["node_selector"]["pool"] == "gpu" and not pod.keys() & {"runtimeClassName", "nodeSelector"}


def test_a_long_name_of_a_release_leaves_room_for_what_is_appended() -> None:
    rendered = render(merged(*GROUPS), release="a-release-with-a-name-of-fifty-three-characters-long")
    assert max(len(name(each)) for each in rendered.objects) <= 52


@pytest.mark.parametrize("file", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_each_example_is_a_value_set_that_is_tested(file: str) -> None:
    assert any(file in layers for layers in VALUE_SETS.values())
