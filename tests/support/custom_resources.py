"""Schemas of the fields that we use of objects that others define: Prometheus' operator, KEDA, KubeRay.

Strict: a field that is not here is refused, so that a misspelt one is found.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
COUNT: Schema = {"type": "integer", "minimum": 0}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}


def fields(*required: str, **known: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": known}


def some(items: Schema) -> Schema:
    return {"type": "array", "minItems": 1, "items": items}


def resource(version: str, kind: str, spec: Schema) -> Schema:
    metadata = fields("name", name=TEXT, labels=TEXTS, annotations=TEXTS)
    known = {"apiVersion": {"const": version}, "kind": {"const": kind}, "metadata": metadata, "spec": spec}
    return fields(*known, **known)


_DURATION: Schema = {"type": "string", "pattern": r"^[0-9]+(ms|s|m|h)$"}
_SELECTOR = fields("matchLabels", matchLabels=TEXTS)
_ENDPOINT = fields(
    "port",
    port=TEXT,
    path={"type": "string", "pattern": "^/"},
    interval=_DURATION,
    scheme={"enum": ["http", "https"]},
    tlsConfig=fields("insecureSkipVerify", insecureSkipVerify={"type": "boolean"}),
    relabelings=some(fields("targetLabel", targetLabel=TEXT, replacement=TEXT)),
)
_RULE = fields("alert", "expr", alert=TEXT, expr=TEXT, **{"for": _DURATION}, labels=TEXTS, annotations=TEXTS)
_TRIGGER = fields(
    "type",
    "metadata",
    type={"const": "prometheus"},
    metricType={"enum": ["AverageValue", "Value"]},
    metadata=fields(
        "serverAddress", "query", "threshold", serverAddress=TEXT, query=TEXT, threshold={"type": "string"}
    ),
)
_NODE_GROUP: dict[str, Schema] = {
    "rayStartParams": TEXTS,
    "template": {"type": "object"},  # a pod, which is checked as one
}
_WORKER_GROUP = fields(
    "groupName",
    "rayStartParams",
    "template",
    groupName=TEXT,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    **_NODE_GROUP,
)

SCHEMAS: dict[str, Schema] = {
    "ServiceMonitor": resource(
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        fields("selector", "endpoints", selector=_SELECTOR, endpoints=some(_ENDPOINT)),
    ),
    "PrometheusRule": resource(
        "monitoring.coreos.com/v1",
        "PrometheusRule",
        fields("groups", groups=some(fields("name", "rules", name=TEXT, rules=some(_RULE)))),
    ),
    "ScaledObject": resource(
        "keda.sh/v1alpha1",
        "ScaledObject",
        fields(
            "scaleTargetRef",
            "triggers",
            scaleTargetRef=fields("name", apiVersion=TEXT, kind=TEXT, name=TEXT),
            minReplicaCount=COUNT,
            maxReplicaCount=COUNT,
            fallback=fields("failureThreshold", "replicas", failureThreshold=COUNT, replicas=COUNT),
            triggers=some(_TRIGGER),
        ),
    ),
    "RayCluster": resource(
        "ray.io/v1",
        "RayCluster",
        fields(
            "headGroupSpec",
            "workerGroupSpecs",
            rayVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
            enableInTreeAutoscaling={"type": "boolean"},
            headGroupSpec=fields("rayStartParams", "template", serviceType=TEXT, **_NODE_GROUP),
            workerGroupSpecs=some(_WORKER_GROUP),
        ),
    ),
}
