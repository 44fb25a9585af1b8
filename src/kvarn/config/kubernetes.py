"""Settings of the Kubernetes cluster in which engines run as pods."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from kvarn.config.section import Section

_LABEL = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
Quantities = dict[str, Annotated[str, Field(pattern=r"^[0-9.]+[A-Za-z]*$")]]


class KubernetesConfig(Section):
    """The Kubernetes cluster in which engines run as pods. See docs/operate/kubernetes_launcher.md."""

    server: str = Field("kvarn", pattern=_LABEL, max_length=40)
    """Label of this server's pods. Two servers in one namespace need two."""

    api_server: str | None = Field(None, pattern=r"^https?://[^/\s]+$")
    """Address of the API server. Default: that of the cluster in which this process is a pod."""

    credentials: str = Field("/var/run/secrets/kubernetes.io/serviceaccount", min_length=1)
    """Directory of the gateway's service account: the files `token`, `ca.crt` and `namespace`."""

    namespace: str | None = Field(None, pattern=_LABEL)
    """Namespace of the pods. Default: the gateway's own."""

    image: str | None = Field(None, min_length=1)
    """Image of the pods. Default: the image of the gateway's own pod, pulled with the same secrets. One that is named
    here is pulled with those of `service_account`."""

    listen_address: str | None = Field(None, min_length=1)
    """Address at which the engines reach the gateway. Default: the address of the gateway's own pod."""

    engine_port: int = Field(5600, ge=1024, le=65535)
    """Port on which an engine listens in its pod."""

    key_secret: str = Field("kvarn-engines", pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
    """Secret that the pods mount at the directory of `key_file`; it has an entry of that file's name."""

    key_file: str = Field("/etc/kvarn/engines/key", pattern=r"^/.+/[^/]+$")
    """File with at least 32 random characters, the same in the gateway and in the pods. The keys of all connections
    are derived from it, so none stands in a pod's description."""

    service_account: str = Field("default", min_length=1)
    """Service account of the pods. They get no token of it."""

    requests: Quantities = Field(default_factory=dict)
    """Further resources that each pod requests, such as `ephemeral-storage: 20Gi`. Memory, cores and GPUs are those of
    `models[].hardware`, or predicted."""

    limits: Quantities = Field(default_factory=dict)
    """Further limits of resources of each pod. Memory is limited where `models[].hardware.memory_gib` is set."""

    gpu_resource: str = Field("nvidia.com/gpu", min_length=1)
    """Name of the resource that stands for a GPU."""

    runtime_class: str | None = Field(None, min_length=1)
    """Runtime class of the pods, such as `nvidia`."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes that engines may run on."""

    tolerations: tuple[dict[str, Any], ...] = ()
    """Taints of nodes that the pods tolerate, as Kubernetes writes them: `{key: gpu, operator: Exists}`."""

    spot_node_selector: dict[str, str] = Field(default_factory=dict)
    """Further labels of the nodes for models with `spot`, such as `cloud.google.com/gke-spot: "true"`."""

    spot_tolerations: tuple[dict[str, Any], ...] = ()
    """Further tolerations of the pods of models with `spot`."""

    claims: dict[Annotated[str, Field(pattern=r"^/")], Annotated[str, Field(min_length=1)]] = Field(
        default_factory=dict
    )
    """Volumes of the pods: persistent volume claims by the path at which they are mounted, such as `/models: models`.
    Checkpoints have the same path in the gateway and in the pods."""

    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the pods, such as `HF_HOME: /models/hub`. No secrets: whoever may list pods can
    read them."""

    place_timeout_s: float = Field(480.0, gt=0)
    """Seconds for which a pod may wait for a node and its image, before it is deleted and another is made. Longer than
    a cluster takes to add a node, and shorter than `replica.start_timeout_s`."""

    orphan_timeout_s: float = Field(300.0, gt=0)
    """Seconds after which an engine without a gateway ends. Engines outlive their gateway for this long, and a gateway
    that starts takes over those it finds."""

    grace_period_s: int = Field(60, ge=1)
    """Seconds from the announcement that a pod ends (an eviction, a node that is drained) to its end. Requests that run
    get them to finish; a little before the end the others go on with another replica. The cloud's notice for spot
    nodes may be shorter."""
