"""The description of an engine's pod, and what the gateway and the pod both derive from its name. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec
import zmq
import zmq.utils.z85

from kvarn.config.kubernetes import KubernetesConfig
from kvarn.fleet.placement.packing import Needs
from kvarn.replica.endpoint import CurveKeys
from kvarn.replica.spec import ReplicaSpec

SERVER_LABEL: Final = "kvarn.io/server"
REPLICA, RUN = "kvarn.io/replica", "kvarn.io/run"
"""Annotations: a label may not have every character of a replica's name."""
ENGINE_VARIABLE, ADDRESS_VARIABLE = "KVARN_POD_ENGINE", "KVARN_POD_ADDRESS"
LEAST_KEY_BYTES = 32
_MAX_SLUG = 30


class PodArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of a pod's first process: the value of `ENGINE_VARIABLE`, as JSON."""

    name: str
    """Name of the pod."""
    port: int
    key_file: str
    spec: ReplicaSpec
    """Without keys: who may read pods reads this."""

    def as_text(self) -> str:
        """JSON without a `$`, which Kubernetes expands in the values of variables."""
        return msgspec.json.encode(self).decode().replace("$", r"\u0024")


@dataclass(frozen=True, slots=True)
class EngineKeys:
    """The key that a server's gateways and pods share."""

    master: bytes = field(repr=False)

    def of(self, pod: str) -> CurveKeys:
        """The keys of a pod's engine and of the gateways that use it: BLAKE2b of the pod's name under the shared key.
        Every 32 bytes are a secret key of Curve25519."""
        engine, gateway = self._secret(f"engine {pod}"), self._secret(f"gateway {pod}")
        return CurveKeys(
            engine=zmq.curve_public(engine).decode(),
            engine_secret=engine.decode(),
            gateway=zmq.curve_public(gateway).decode(),
            gateway_secret=gateway.decode(),
        )

    def _secret(self, whose: str) -> bytes:
        key = hashlib.blake2b(self.master, digest_size=64).digest()
        return zmq.utils.z85.encode(hashlib.blake2b(whose.encode(), key=key, digest_size=32).digest())


def pod_name(server: str, replica: str, run: int) -> str:
    """Name of a run's pod: another for each replica, and a valid host name."""
    slug = re.sub(r"[^a-z0-9]+", "-", replica.lower())[:_MAX_SLUG].strip("-")
    digest = hashlib.blake2b(f"{server}\0{replica}".encode(), digest_size=4).hexdigest()
    return f"kvarn-{slug}-{digest}-{run}" if slug else f"kvarn-{digest}-{run}"


def selector(config: KubernetesConfig) -> str:
    return f"{SERVER_LABEL}={config.server}"


def pod_manifest(
    config: KubernetesConfig,
    engine: PodArguments,
    run: int,
    needs: Needs,
    image: str,
    pull_secrets: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """The pod of one run: it is never restarted in place, may write nothing but its scratch volumes, and has no access
    to the API."""
    spec = engine.spec
    container = {
        "name": "engine",
        "image": image,
        "command": ["python", "-P", "-m", "kvarn.fleet.kubernetes.pod"],
        "env": _environment(config.env, engine.as_text()),
        "ports": [{"name": "engine", "containerPort": config.engine_port}],
        "resources": _resources(config, needs, is_limited=spec.model_config.hardware.memory_gib is not None),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {"name": "scratch", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "key", "mountPath": str(PurePosixPath(config.key_file).parent), "readOnly": True},
            *[{"name": f"claim-{number}", "mountPath": path} for number, path in enumerate(config.claims)],
        ],
    }
    is_spot = spec.model_config.spot is not None
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": engine.name,
            "labels": {
                "app.kubernetes.io/name": "kvarn-engine",
                "app.kubernetes.io/managed-by": "kvarn",
                SERVER_LABEL: config.server,
            },
            "annotations": {REPLICA: spec.replica, RUN: str(run)},
        },
        "spec": {
            **({} if config.runtime_class is None else {"runtimeClassName": config.runtime_class}),
            "restartPolicy": "Never",
            "serviceAccountName": config.service_account,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": config.grace_period_s,
            "nodeSelector": {**config.node_selector, **(config.spot_node_selector if is_spot else {})},
            "tolerations": [*config.tolerations, *(config.spot_tolerations if is_spot else ())],
            "imagePullSecrets": [*pull_secrets],
            "containers": [container],
            "volumes": [
                {"name": "scratch", "emptyDir": {}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
                {"name": "key", "secret": {"secretName": config.key_secret}},
                *[
                    {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}}
                    for number, claim in enumerate(config.claims.values())
                ],
            ],
        },
    }


def _environment(configured: Mapping[str, str], engine: str) -> list[dict[str, Any]]:
    own = {"HOME": "/tmp", **configured, ENGINE_VARIABLE: engine}
    address = {"name": ADDRESS_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return [*[{"name": name, "value": value} for name, value in own.items()], address]


def _resources(config: KubernetesConfig, needs: Needs, *, is_limited: bool) -> dict[str, dict[str, str]]:
    requests, limits = {"memory": str(needs.memory_bytes)}, dict[str, str]()
    if needs.cpus:
        requests["cpu"] = f"{needs.cpus:g}"
    if is_limited:
        limits["memory"] = requests["memory"]
    if needs.gpus:  # a whole one for each rank: Kubernetes gives no shares
        limits[config.gpu_resource] = requests[config.gpu_resource] = str(needs.gpus)
    return {"requests": requests | config.requests, "limits": limits | config.limits}
