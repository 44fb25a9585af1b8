"""A pod that is watched, and the engine process in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kvarn.clock import SYSTEM_CLOCK
from kvarn.fleet.kubernetes.objects import Pod
from kvarn.fleet.launch.launcher import ReportStage
from kvarn.fleet.placement.places import LaunchError
from kvarn.replica.endpoint import Endpoint


class EngineInPod:
    """An engine process in a pod. It outlives this process."""

    pid = 1  # in its pod

    def __init__(self, endpoint: Endpoint, supervisor: str, pod: FollowedPod) -> None:
        self.endpoint = endpoint
        self.supervisor = supervisor
        self.exited = pod.exited
        self.announced = pod.announced
        self.kill = pod.kill

    def close(self) -> None: ...


class FollowedPod:
    """Futures of a pod that is watched: that it has started, that its end is announced, that it has ended."""

    def __init__(self, name: str, delete: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.exists = False
        """Whether the API server knows it: one that it no longer lists is gone."""
        self.was_killed = False
        self.started: asyncio.Future[Pod] = loop.create_future()
        self.exited: asyncio.Future[str | None] = loop.create_future()
        self.announced: asyncio.Future[float] = loop.create_future()
        self.on_stage: ReportStage = lambda stage: None
        self.waits_for = ""
        self._delete = delete

    def kill(self) -> None:
        self.was_killed = True
        self._delete(self.name)

    def seen(self, pod: Pod) -> None:
        """Take over what the API server says of it."""
        self.exists = True
        if pod.has_ended:
            self.gone(pod.end_reason)
            return
        if self.waits_for != pod.waits_for and not pod.runs:
            self.waits_for = pod.waits_for
            self.on_stage(self.waits_for)
        if not self.started.done():
            if pod.runs:
                self.started.set_result(pod)
            elif pod.problem:
                self.started.set_exception(LaunchError(pod.problem))
        if pod.is_ending and not self.was_killed and not self.announced.done():
            self.announced.set_result(pod.notice_s(SYSTEM_CLOCK.time()))

    def gone(self, reason: str | None) -> None:
        if not self.started.done():
            self.started.set_exception(LaunchError(reason or "its pod has ended"))
        if not self.exited.done():
            self.exited.set_result(reason)
