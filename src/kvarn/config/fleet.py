"""Settings of the fleet: where engine processes are started, and who looks after them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from kvarn.config.kubernetes import KubernetesConfig
from kvarn.config.section import Section


class RayConfig(Section):
    """The Ray cluster whose machines run the engines. Needs the extra `ray`."""

    address: str = Field("auto", min_length=1)
    """Address of the cluster's head, such as `10.0.0.5:6379`. `auto`: the cluster that this machine is a node of."""

    namespace: str = Field("kvarn", min_length=1)
    """Ray's namespace of this deployment's engines. Two deployments on one cluster need two."""

    listen_address: str | None = Field(None, min_length=1)
    """Address of this machine at which the engines reach the gateway. Default: the one Ray knows it by."""

    place_timeout_s: float = Field(60.0, gt=0)
    """Seconds that finding a place for a replica may take, before it is tried again after a pause."""

    orphan_timeout_s: float = Field(300.0, gt=0)
    """Seconds after which an engine without a gateway ends. Engines outlive their gateway for this long, and a gateway
    that starts takes over those it finds."""


class FleetConfig(Section):
    """Machines that engines run on, and the starting and stopping of replicas."""

    launcher: Literal["local", "ray", "kubernetes"] = "local"
    """`local`: processes of this machine. `ray`: machines of a Ray cluster. `kubernetes`: pods of the cluster in which
    the gateway is a pod."""

    ray: RayConfig = RayConfig()
    """The Ray cluster."""

    kubernetes: KubernetesConfig = KubernetesConfig()
    """The Kubernetes cluster."""

    poll_s: float = Field(2.0, gt=0)
    """Seconds between two polls of the database for changed deployments, and of the replicas."""

    warm_pool: int = Field(0, ge=0)
    """Engine processes that wait with their libraries imported and a checkpoint's weights mapped, on a GPU asleep with
    the weights in main memory: one for each of so many of the most popular models that have no replica now
    (`autoscale.min_replicas` 0)."""

    lease_s: float = Field(15.0, gt=0)
    """Lease of the gateway that manages the fleet, in seconds, where several share a database: another takes over this
    long after the last renewal."""


class UpdateConfig(Section):
    """Replacement of a deployment's replicas when its version changes."""

    max_surge: int = Field(1, ge=0)
    """Replicas beyond those wanted that may run meanwhile."""

    max_unavailable: int = Field(0, ge=0)
    """Replicas that may be missing from the desired number meanwhile: for machines without room for one more."""

    drain_timeout_s: float = Field(30.0, ge=0)
    """Seconds a replica gets to finish its requests. What is left goes on with another."""

    @model_validator(mode="after")
    def _something_can_change(self) -> UpdateConfig:
        if self.max_surge == 0 and self.max_unavailable == 0:
            raise ValueError("max_surge or max_unavailable must be positive, or no replica could ever be replaced")
        return self


class HardwareConfig(Section):
    """Resources of a machine that one replica needs. It is placed on a machine that has them."""

    cpus: float | None = Field(None, gt=0)
    """Cores. Default: `threads`, or none are reserved."""

    memory_gib: float | None = Field(None, gt=0)
    """Memory in GiB. Default: predicted from the size of the checkpoint, its quantisation and the KV cache."""

    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    """Share of a GPU's whole memory that a replica takes: weights, KV cache and what a step needs. Each of several
    processes (ranks) takes this share of a GPU of its own. Replicas are placed on one GPU as long as their shares fit;
    what other programs hold is not used. See docs/start/gpu.md."""


class AutoscaleConfig(Section):
    """Number of a model's replicas, by the work that arrives. See docs/operate/fleet.md."""

    min_replicas: int = Field(1, ge=0, le=256)
    """Smallest number of replicas. 0: an idle model has none; requests wait until one is ready."""

    max_replicas: int = Field(1, ge=1, le=256)
    """Largest number of replicas."""

    target_utilization: float = Field(0.7, gt=0, le=1)
    """Share of a replica's modelled capacity that arriving work shall take. What is left takes up bursts."""

    start_s: float = Field(30.0, gt=0)
    """Seconds that a replica takes to start: work is predicted this far ahead."""

    scale_in_delay_s: float = Field(300.0, ge=0)
    """Seconds for which fewer replicas must have been enough before any is drained."""

    idle_s: float = Field(600.0, gt=0)
    """Seconds in which no request has arrived or run, after which a model with `min_replicas` 0 has none."""

    max_held: int = Field(256, ge=0)
    """Requests that may wait for the first replica. More get 503 with Retry-After."""

    max_hold_s: float = Field(120.0, gt=0)
    """Seconds for which a request waits for it."""

    @model_validator(mode="after")
    def _bounds_hold(self) -> AutoscaleConfig:
        if self.min_replicas > self.max_replicas:
            raise ValueError("min_replicas must not be more than max_replicas")
        return self
