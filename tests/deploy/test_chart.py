"""The Helm chart: Kubernetes takes what it renders, each value does something, and what cannot work is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import pytest
import yaml

from chart import CHART, EXAMPLES, ROOT, VALUE_SETS, Object, Rendered, merged, name_of, render, render_set
from custom_resources import SCHEMAS
from kvarn.config.schema import KvarnConfig

KUBERNETES = ("1.37", "1.30")
"""The newest release whose schemas we have, and the oldest that the chart says it runs on."""
SCHEMA: Object = json.loads((CHART / "values.schema.json").read_text())
VALUES: Object = yaml.safe_load((CHART / "values.yaml").read_text())
AVAILABLE = ("available.yaml",)
GROUPS = ("available.yaml", "groups.yaml")
MAX_VALUES = 60


def _leaves(schema: Object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of the values that a schema names; Kubernetes' own objects and Kvarn's own settings are one."""
    if "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    inner = schema.get("properties", {}) if schema.get("additionalProperties") is False else {}
    if not inner or path[-1:] in (("resources",), ("config",)):
        yield path
        return
    for name, each in inner.items():
        if path or name != "global":
            yield from _leaves(each, (*path, name))


LEAVES = [".".join(path) for path in _leaves(SCHEMA)]

LABELS = {"team": "llm"}
RESOURCES = {"requests": {"cpu": "7", "memory": "7Gi"}}
CHANGES: dict[str, tuple[tuple[str, ...], Any]] = {
    "fullnameOverride": ((), "llm"),
    "image.repository": ((), "registry:5000/kvarn"),
    "image.tag": ((), "0.2.1"),
    "image.pullPolicy": ((), "Always"),
    "image.pullSecrets": ((), [{"name": "registry"}]),
    "models": ((), [{"name": "small", "path": "/models/small"}]),
    "config": ((), {"slo": {"ttft_target_s": 1}}),
    "replicas": (AVAILABLE, 3),
    "launcher": ((), "kubernetes"),
    "gateway.separate": (AVAILABLE, True),
    "gateway.replicas": (GROUPS, 3),
    "gateway.resources": (GROUPS, RESOURCES),
    "engineGroups": (GROUPS, {"h100": {"replicas": 5}}),
    "resources": ((), RESOURCES),
    "gpu.count": ((), 2),
    "gpu.resource": (("gpu.yaml",), "amd.com/gpu"),
    "runtimeClassName": ((), "nvidia"),
    "priorityClassName": ((), "high"),
    "nodeSelector": ((), LABELS),
    "tolerations": ((), [{"key": "gpu", "operator": "Exists"}]),
    "affinity": ((), {"podAntiAffinity": {}}),
    "spreadOver": ((), ["kubernetes.io/hostname"]),
    "storage.enabled": ((), False),
    "storage.size": ((), "1Ti"),
    "storage.className": ((), "fast"),
    "sharedMemorySize": ((), "8Gi"),
    "secret.existing": ((), "keys"),
    "secret.create": ((), {"tls.key": "secret"}),
    "secret.settings": (AVAILABLE, {"metering.currency": "currency"}),
    "secret.engineKey": (GROUPS, "engine-key"),
    "leaveSeconds": ((), 20),
    "startSeconds": ((), 7200),
    "service.type": ((), "LoadBalancer"),
    "service.port": ((), 8080),
    "service.annotations": ((), LABELS),
    "ingress.enabled": (AVAILABLE, False),
    "ingress.className": (AVAILABLE, "traefik"),
    "ingress.host": (AVAILABLE, "other.example.com"),
    "ingress.tlsSecret": (AVAILABLE, ""),
    "ingress.annotations": (AVAILABLE, LABELS),
    "networkPolicy.enabled": ((), False),
    "networkPolicy.from": ((), [{"podSelector": {"matchLabels": LABELS}}]),
    "podDisruptionBudget.enabled": ((), False),
    "serviceAccount.name": ((), "there"),
    "serviceAccount.annotations": ((), LABELS),
    "podAnnotations": ((), LABELS),
    "env": ((), [{"name": "HF_HUB_OFFLINE", "value": "1"}]),
    "volumes": ((), [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}]),
    "volumeMounts": ((), [{"name": "models", "mountPath": "/models"}]),
    "metrics.serviceMonitor": ((), True),
    "metrics.rules": ((), True),
    "metrics.dashboards": ((), True),
    "metrics.namespace": (GROUPS, "prometheus"),
    "metrics.interval": (AVAILABLE, "5s"),
    "metrics.labels": (AVAILABLE, LABELS),
    "autoscaling.kind": (AVAILABLE, "hpa"),
    "autoscaling.minReplicas": ((*AVAILABLE, "autoscaled.yaml"), 3),
    "autoscaling.maxReplicas": ((*AVAILABLE, "autoscaled.yaml"), 9),
    "autoscaling.fallbackReplicas": ((*AVAILABLE, "autoscaled.yaml"), 5),
    "autoscaling.prometheusUrl": ((*AVAILABLE, "autoscaled.yaml"), "http://prometheus:9090"),
}
"""For each value: the values it is changed in, and what it is changed to."""


def _nested(path: str, value: Any) -> Object:
    for part in reversed(path.split(".")):
        value = {part: value}
    return dict(value)


@pytest.mark.parametrize("path", LEAVES)
def test_each_value_changes_what_is_rendered(path: str) -> None:
    layers, value = CHANGES[path]
    before, after = render(merged(*layers)), render(merged(*layers, _nested(path, value)))
    assert _without_random(before) != _without_random(after)


def _without_random(rendered: Rendered) -> list[Object]:
    return [
        each for each in rendered.objects if each["metadata"]["name"] != "kvarn-engines" or each["kind"] != "Secret"
    ]


def test_the_values_are_few_and_all_of_them_are_in_the_file_and_the_schema() -> None:
    defaults = {path for path in LEAVES if _is_default(path)}
    assert defaults == set(LEAVES) == CHANGES.keys() and len(LEAVES) <= MAX_VALUES
    assert VALUES.keys() <= SCHEMA["properties"].keys()


def _is_default(path: str) -> bool:
    found: Any = VALUES
    for part in path.split("."):
        if part not in found:
            return False
        found = found[part]
    return True


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


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replicsa": 2}, "replicsa"),
        ({"replicas": "two"}, "replicas"),
        ({"image": {"tag": "latest"}}, "tag"),
        ({"config": {"models": []}}, "models"),
        ({"config": {"slo": {"ttft_targets": 1}}}, "ttft_targets"),
        ({"models": [{"name": "a", "path": "b", "kv_cache_gb": 1}]}, "kv_cache_gb"),
        ({"models": [{"name": "a", "path": "b", "fallback": [{"modle": "c"}]}]}, "modle"),
        ({"models": []}, "no model to serve"),
        ({"models": [{"path": "kvarn-demo"}]}, "name"),
        ({"replicas": 2}, "one PostgreSQL"),
        ({"gateway": {"separate": True}}, "one PostgreSQL"),
        ({"autoscaling": {"kind": "keda"}}, "one PostgreSQL"),
        ({"secret": {"settings": {"store.url": "url"}}}, "secret.existing"),
        ({"secret": {"existing": "a", "create": {"b": "c"}}}, "keep one"),
        ({"config": {"store": {"url": "postgresql://kvarn:secret@db/kvarn"}}}, "secret.settings"),
        ({"launcher": "kubernetes", "replicas": 2}, "replicas: 1"),
        ({"launcher": "kubernetes", "autoscaling": {"kind": "hpa"}}, "autoscale"),
        ({"launcher": "kubernetes", "gateway": {"separate": True}}, "leave out gateway.separate"),
        ({"engineGroups": {"l4": {"models": [{"name": "a"}]}}}, "gateway.separate: true"),
        ({"engineGroups": {"gateway": {"models": [{"name": "a"}]}}}, "'gateway'"),
        ({"engineGroups": {"l4": {"models": [{"name": "a"}], "image": {}}}}, "engineGroups"),
        ({"ingress": {"enabled": True}}, "ingress.host"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_do(values: Object, words: str) -> None:
    with pytest.raises(Exception, match=words):
        render(values)


def test_all_settings_of_kvarn_are_taken_as_they_are() -> None:
    config = KvarnConfig().model_dump(mode="json", exclude={"data_dir"})
    models = config.pop("models")
    rendered = render({"config": config, "models": models})
    settings = rendered.settings(rendered.workloads()[0])
    assert settings == {**config, "models": models, "data_dir": "/data"}


def test_a_setting_of_kvarn_keeps_its_type_however_large_it_is() -> None:
    config = {"retention": {"max_file_bytes": 2**40, "files_days": 10_000_000}, "auth": {"refresh_s": 0.001}}
    settings = render({"config": config}).settings(render().workloads()[0])
    assert settings["retention"] == config["retention"] and settings["auth"] == config["auth"]
    assert all(isinstance(each, int) for each in settings["retention"].values())


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
        merged(*AVAILABLE, {"gateway": {"separate": True}, "models": [], "engineGroups": {"a": group, "b": group}})
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


def test_a_long_name_of_a_release_leaves_room_for_what_is_appended() -> None:
    rendered = render(merged(*GROUPS), release="a-release-with-a-name-of-fifty-three-characters-long")
    assert max(len(name(each)) for each in rendered.objects) <= 52


@pytest.mark.parametrize("file", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_each_example_is_a_value_set_that_is_tested(file: str) -> None:
    assert any(file in layers for layers in VALUE_SETS.values())
