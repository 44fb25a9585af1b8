"""Kubernetes' objects, as far as the launcher reads them, and what a pod's status says. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

import msgspec

from kvarn.fleet.launch.process_exit import describe_exit

_CANNOT_START = frozenset(
    {"ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
"""Reasons of a container that waits and will not start as it is described. `ErrImagePull` is tried again once."""
_SIGNALLED = 128
"""The exit status of a process that a signal ended is this plus the signal's number."""

_MAX_MESSAGE = 300  # characters of the last line of its log


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    resource_version: str = ""
    deletion_timestamp: datetime | None = None
    """Set once the pod has been told to end: the end of its grace."""
    deletion_grace_period_seconds: float | None = None


class Waiting(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class Terminated(msgspec.Struct, frozen=True, rename="camel"):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    """End of the container's log."""


class ContainerState(msgspec.Struct, frozen=True):
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct, frozen=True):
    state: ContainerState = ContainerState()


class Condition(msgspec.Struct, frozen=True):
    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = "Pending"
    pod_ip: str = msgspec.field(name="podIP", default="")
    reason: str = ""
    message: str = ""
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []


class Container(msgspec.Struct, frozen=True):
    image: str = ""


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    containers: list[Container] = []
    image_pull_secrets: list[dict[str, str]] = []


class Pod(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def has_ended(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def runs(self) -> bool:
        """Whether its process has been started, at an address that is known."""
        return self.status.phase == "Running" and bool(self.status.pod_ip)

    @property
    def is_ending(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    def notice_s(self, now: float) -> float:
        """Seconds that a pod which is ending still has. `now`: seconds since 1970."""
        ends, grace_s = self.metadata.deletion_timestamp, self.metadata.deletion_grace_period_seconds or 0.0
        return grace_s if ends is None else max(0.0, min(grace_s, ends.timestamp() - now))

    @property
    def problem(self) -> str:
        """The reason why it cannot start as it is described; empty: none is known."""
        waiting = self._waiting
        if waiting is None or waiting.reason not in _CANNOT_START:
            return ""
        return f"its container cannot be started: {waiting.reason}: {waiting.message or self._image}"

    @property
    def waits_for(self) -> str:
        """Reason why its process does not run yet, in Kubernetes' words."""
        for condition in self.status.conditions:
            if condition.type == "PodScheduled" and condition.status == "False":
                return f"no node has room for it: {condition.message or condition.reason}"
        waiting = self._waiting
        if waiting is not None and waiting.reason:
            return f"its container waits: {waiting.reason}{': ' if waiting.message else ''}{waiting.message}"
        return "its container is being started"

    @property
    def end_reason(self) -> str | None:
        """The reason why its process ended; None after a clean exit."""
        ended = self._state.terminated
        if ended is not None and ended.reason == "OOMKilled":
            return "its container needed more memory than its limit (OOMKilled): raise models[].hardware.memory_gib"
        if self.status.reason:  # Evicted, NodeShutdown, NodeLost, ...
            return f"{self.status.reason}: {self.status.message or 'the pod was ended'}"
        if ended is None:
            return None if self.status.phase == "Succeeded" else "the pod failed, and does not say why"
        if not (status := ended.exit_code):
            return None
        *_, last = ["", *ended.message.splitlines()]
        said = f": {last.strip()[:_MAX_MESSAGE]}" if last.strip() else ""
        return describe_exit(status if status <= _SIGNALLED else _SIGNALLED - status) + said

    @property
    def _state(self) -> ContainerState:
        return self.status.container_statuses[0].state if self.status.container_statuses else ContainerState()

    @property
    def _waiting(self) -> Waiting | None:
        return self._state.waiting

    @property
    def _image(self) -> str:
        return self.spec.containers[0].image if self.spec.containers else ""


_ObjectT = TypeVar("_ObjectT")


class PodList(msgspec.Struct, frozen=True):
    metadata: Metadata
    items: list[Pod] = []


class WatchEvent(msgspec.Struct, Generic[_ObjectT], frozen=True):
    type: str
    """`ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`."""
    object: _ObjectT


class Status(msgspec.Struct, frozen=True):
    """An error, as the API server describes it."""

    message: str = ""
    reason: str = ""
    code: int = 0
