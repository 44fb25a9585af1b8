"""The base of launchers, and the engine processes that they start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from kvarn.fleet.placement.places import Places
from kvarn.replica.endpoint import Endpoint
from kvarn.replica.spec import ReplicaSpec

ReportStage = Callable[[str], None]
"""Called while a process is being launched with what it waits for."""


class LaunchedEngine(Protocol):
    endpoint: Endpoint
    pid: int
    supervisor: str
    """ZMQ address that its supervisor binds. Messages that the engine sends earlier wait."""

    @property
    def exited(self) -> asyncio.Future[str | None]:
        """Resolves when the process is gone for certain: the reason, or None after a clean exit."""
        ...

    @property
    def announced(self) -> asyncio.Future[float]:
        """Resolves when its machine tells that it will end the process: in so many seconds."""
        ...

    def kill(self) -> None:
        """Have the process killed; never waits, and may be repeated."""
        ...

    def close(self) -> None:
        """Remove what the process left behind; kill it where that cannot fail. Idempotent."""
        ...


class Launcher:
    """Base of the launchers, which start engine processes for replicas. The runs of a replica are numbered."""

    on_this_machine: bool  # the processes run here, and end with this one
    places: Places
    """Machines and GPUs of the replicas; without machines, room is not counted here."""

    def start(self) -> None: ...

    async def stop(self) -> None:
        """End what `start` began; engine processes of other machines go on."""

    async def launch(self, spec: ReplicaSpec, run: int, report: ReportStage = lambda stage: None) -> LaunchedEngine:
        """Start a process. Raises `LaunchError` or `OSError`."""
        raise NotImplementedError

    def give_up(self, replica: str, run: int) -> None:
        """Stop waiting for a launch that is under way, where that may take long. May be repeated."""

    async def adopt(self, replica: str) -> dict[int, LaunchedEngine]:
        """Processes of a replica that an earlier controller started and that may still run, by run."""
        return {}

    async def replicas(self) -> set[str]:
        """Names of replicas that an earlier controller started and that may still run. Raises `LaunchError`."""
        return set()

    async def end(self, replica: str) -> None:
        """End the processes of a replica that an earlier controller started and this one does not know."""
