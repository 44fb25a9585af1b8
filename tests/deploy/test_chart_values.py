"""Values of the Helm chart: each does something, names are checked, and what cannot work is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from chart import CHART, Object, Rendered, merged, render
from kvarn.config.schema import KvarnConfig

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
        ({"config": {"limits": {"redis_url": "redis://:secret@redis:6379/0"}}}, "secret.settings"),
        (
            merged("available.yaml", {"models": [{"name": "Qwen/Qwen3-8B"}], "autoscaling": {"kind": "hpa"}}),
            "cannot ask for the model",
        ),
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
