"""Specification of an engine process: one line of JSON on its standard input, which then stays open."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from typing import Literal

import msgspec

from kvarn.config.model import ModelConfig
from kvarn.replica.endpoint import Endpoint
from kvarn.wire.messages import AdapterInfo

ReportProgress = Callable[[str, float], None]
"""Called while a model loads, with the stage and the fraction of it that is done."""
DEFAULT_FACTORY = "kvarn.replica.server.build:build_service"


def replica_names(model: str, count: int) -> list[str]:
    """Names of a model's replicas on this machine: the machine's and the model's, and a number where there are
    several."""
    name = f"{platform.node()}/{model}"
    return [name] if count == 1 else [f"{name}/{number}" for number in range(count)]


def replica_name(model: str, version: int, number: int, *, on_this_machine: bool) -> str:
    """Name of one of a version's replicas, with the machine's where it cannot run on another."""
    parts = [platform.node()] if on_this_machine else []
    return "/".join([*parts, model, *([f"v{version}"] if version else []), str(number)])


def version_of(replica: str) -> tuple[str, int]:
    """Model and version in the name of a replica that may run on any machine."""
    *rest, _ = replica.split("/")
    if len(rest) > 1 and (found := re.fullmatch(r"v([1-9][0-9]*)", rest[-1])):
        return "/".join(rest[:-1]), int(found[1])
    return "/".join(rest), 0


def configured_adapters(model: ModelConfig) -> list[AdapterInfo]:
    return [
        AdapterInfo(
            name=each.name,
            path=each.path,
            organizations=None if each.organizations is None else list(each.organizations),
            projects=None if each.projects is None else list(each.projects),
        )
        for each in model.adapters
    ]


class ReplicaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process: which model, how it schedules, how it reports."""

    model: str
    """JSON of the `ModelConfig`, of what is set in it."""
    version: int = 0
    """Number of the deployment's version; 0: the configuration's."""
    replica: str = ""
    directory: str  # the checkpoint's directory on this machine
    adapters: list[AdapterInfo] = []
    """Adapters of the deployment: they are loaded while it serves, and one that cannot be is left out."""
    draft_directory: str = ""
    """Directory of the draft model; empty where there is none."""
    heartbeat_interval_s: float = 0.5
    log_level: str = "info"
    log_format: str = "text"
    cpus: tuple[int, ...] = ()  # logical CPUs to run on; empty: those of the parent
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs to run on, one for each rank; empty: those of the parent."""
    warm: bool = False
    """Only map the weights, and wait for `Activate` before anything of the model is made."""
    factory: str = DEFAULT_FACTORY
    """`module:function` that is called with the spec and a `ReportProgress`, and returns the service. Tests name a
    scripted one."""
    endpoint: Endpoint = Endpoint()  # endpoint of the process. Set when it is launched, as are the next two.
    supervisor: str = ""  # ZMQ address that its supervisor reads
    orphan_timeout_s: float = 0.0
    """Seconds without a word of its supervisor after which it ends. 0: it ends with the process that started it."""
    role: Literal["both", "decode", "prefill"] = "both"
    """Whether it asks another process to compute long prompts, or is that process."""
    prefill_socket: str = ""
    """Path at which that process listens; empty for the role `both`."""
    spawned_at: float = 0.0
    """`Clock.now` of the parent just before it started the process."""

    @property
    def model_config(self) -> ModelConfig:
        return ModelConfig.model_validate_json(self.model)
