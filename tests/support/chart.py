"""The Helm chart, rendered by Helm itself as a library: no cluster, no binary. Skips where Helm is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvarn.config.yaml import parse_yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "chart" / "kvarn"
EXAMPLES = ROOT / "deploy" / "chart" / "examples"
RELEASE, NAMESPACE = "kvarn", "llm"
WORKLOADS = ("Deployment", "StatefulSet")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Object = dict[str, Any]

VALUE_SETS: dict[str, tuple[str | Object, ...]] = {
    "default": (),
    "gpu": ("gpu.yaml",),
    "available": ("available.yaml",),
    "autoscaled": ("available.yaml", "autoscaled.yaml"),
    "hpa": ("available.yaml", "autoscaled.yaml", {"autoscaling": {"kind": "hpa"}}),
    "groups": ("available.yaml", "groups.yaml"),
    "groups-autoscaled": ("available.yaml", "groups.yaml", "autoscaled.yaml"),
    "launcher": ("launcher.yaml",),
    "tls": (
        {
            "secret": {"create": {"tls.crt": "certificate", "tls.key": "key"}},
            "config": {
                "gateway": {
                    "ssl_certfile": "/run/secrets/kvarn/tls.crt",
                    "ssl_keyfile": "/run/secrets/kvarn/tls.key",
                    "port": 8443,
                    "drain_timeout_s": 300.5,
                }
            },
            "networkPolicy": {"from": [{"podSelector": {"matchLabels": {"app": "chat"}}}]},
            "metrics": {"serviceMonitor": True},
        },
    ),
}
"""Values by what they are an example of: files of deploy/chart/examples, later ones over earlier ones."""


@dataclass(frozen=True)
class Rendered:
    """The objects of a release."""

    objects: list[Object]
    notes: str = ""

    def of(self, *kinds: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] in kinds]

    def workloads(self) -> list[Object]:
        return self.of(*WORKLOADS)

    def containers(self) -> Iterator[tuple[Object, Object, Object]]:
        """Each container with its workload and its pod's spec."""
        for workload in self.workloads():
            pod = workload["spec"]["template"]["spec"]
            for container in pod["containers"]:
                yield workload, pod, container

    def selected(self, selector: Object) -> list[Object]:
        """The workloads whose pods a selector of labels finds."""
        wanted = selector.get("matchLabels", selector).items()
        return [each for each in self.workloads() if wanted <= each["spec"]["template"]["metadata"]["labels"].items()]

    def settings(self, workload: Object) -> Object:
        """The configuration file that its pods get."""
        volumes = workload["spec"]["template"]["spec"]["volumes"]
        name = next(each["configMap"]["name"] for each in volumes if each["name"] == "config")
        (found,) = [each for each in self.of("ConfigMap") if each["metadata"]["name"] == name]
        settings: Object = parse_yaml(found["data"]["kvarn.yaml"])
        return settings


def name_of(thing: Object) -> str:
    return f"{thing['kind']}/{thing['metadata']['name']}"


def merged(*layers: str | Object) -> Object:
    """Values of several files and mappings, later ones over earlier ones, as Helm merges them."""
    result: Object = {}
    for layer in layers:
        result = _merge(result, yaml.safe_load((EXAMPLES / layer).read_text()) if isinstance(layer, str) else layer)
    return result


def _merge(base: Object, over: Object) -> Object:
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _merge(result[key], value) if both else value
    return result


@cache
def _chart(path: Path) -> Any:
    helm = pytest.importorskip("helm_python", reason="Helm is missing: pip install 'kvarn[chart]'")
    return helm.Chart.load(path)


def render(values: Object | None = None, *, release: str = RELEASE, path: Path = CHART) -> Rendered:
    """Render a chart. Raises Helm's errors: values against the schema, combinations that the chart refuses."""
    files: dict[str, str] = _chart(path).render(values or {}, name=release, namespace=NAMESPACE)
    notes = "".join(text for name, text in files.items() if name.endswith("NOTES.txt"))
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    objects = [each for text in texts for each in yaml.load_all(text, _LOADER) if each is not None]
    return Rendered(objects, notes)


@cache
def _rendered(name: str) -> str:
    return json.dumps(render(merged(*VALUE_SETS[name])).objects)


def render_set(name: str) -> Rendered:
    """A value set, rendered once; the objects may be changed."""
    return Rendered(json.loads(_rendered(name)))
