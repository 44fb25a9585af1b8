"""Versions of models whose files have been found, so that they can have replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kvarn.clock import SYSTEM_CLOCK, Clock
from kvarn.fleet.checkpoints import Checkpoints, check_binding, find_checkpoints, fingerprints_of
from kvarn.fleet.desired import Desired
from kvarn.fleet.preparation import Preparations, PreparingError
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.routing.model_choice import split_version, version_name
from kvarn.store.errors import StoreAwayError

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
BindVersion = Callable[[str, int, dict[str, Any]], Awaitable[None]]
"""Called with the files of a version that is found for the first time: the model, its number and `fingerprints_of`."""


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """A version of a model whose checkpoint has been found."""

    desired: Desired
    directory: Path
    created: int
    is_candidate: bool = False
    """It is rolled out, and answers only the requests that its rollout gives it."""


class FleetListener(Protocol):
    """Hears what is served. Every version is told before its first replica."""

    async def version_added(self, version: ServedVersion) -> None:
        """A version of a model will have replicas. One for which this raises is not served; what was served goes on."""
        ...

    def replica_added(self, supervisor: EngineSupervisor) -> None:
        """A version has one more replica: subscribe to it."""
        ...

    def version_removed(self, model: str, version: int) -> None:
        """A version is wanted no longer and has no replicas, or cannot be served."""
        ...


class VersionTable:
    """Finds versions beside the controller's passes: a checkpoint may have to be downloaded. `on_ended` is called when
    something has been found, or has not."""

    def __init__(
        self, on_ended: Callable[[], None], bind: BindVersion | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.known: dict[tuple[str, int], ServedVersion] = {}  # by model and number
        self.problems: dict[str, str] = {}
        """The reason why a version is not as desired, by its name."""
        self.listeners: list[FleetListener] = []
        self._bind = bind
        self._clock = clock
        self._finding = Preparations[None](on_ended, clock)
        self._starting = Preparations[Checkpoints](on_ended, clock)

    async def stop(self) -> None:
        await self._finding.stop()
        await self._starting.stop()

    def find(self, desired: Desired, *, is_candidate: bool = False) -> ServedVersion | None:
        """A version; None until it can have replicas, and `problems` says why."""
        key = desired.model.name, desired.version
        known = self.known.get(key)
        if known is None:  # a later pass finds it, once its files have been
            self._result(desired, self._finding, key, partial(self._make_known, desired, is_candidate=is_candidate))
            return None
        if (known.desired, known.is_candidate) != (desired, is_candidate):
            known = self.known[key] = replace(known, desired=desired, is_candidate=is_candidate)
        return known

    def files_of(self, desired: Desired, replica: str) -> Checkpoints | None:
        """The files of a replica that is to be started now; None until they have been found."""
        return self._result(desired, self._starting, replica, partial(self._bound, desired))

    def serving(self, model: str) -> ServedVersion | None:
        served = [each for (name, _), each in self.known.items() if name == model and not each.is_candidate]
        return served[-1] if served else None

    def keep(self, used: set[tuple[str, int]], wanted: set[tuple[str, int]]) -> None:
        self._finding.keep(wanted - self.known.keys())
        self.problems = {name: why for name, why in self.problems.items() if split_version(name) in used | wanted}
        for key in [*self.known.keys() - used - wanted]:
            del self.known[key]
            self._tell_removed(key)

    def _tell_removed(self, key: tuple[str, int]) -> None:
        for listener in self.listeners:
            listener.version_removed(*key)

    def _result(
        self,
        desired: Desired,
        works: Preparations[ResultT],
        key: Hashable,
        work: Callable[[], Coroutine[Any, Any, ResultT]],
    ) -> ResultT | None:
        """The result of a piece of work for a version; None while it is under way or fails: then `problems` says
        why."""
        name = version_name(desired.model.name, desired.version)
        try:
            result = works.result(key, work)
        except PreparingError:
            self.problems.setdefault(name, f"version {desired.version} is being prepared: its files are looked for")
        except Exception as error:
            if self.problems.get(name) != str(error):
                log.error("version %d of %r cannot be started: %s", desired.version, desired.model.name, error)
            self.problems[name] = str(error)
        else:
            self.problems.pop(name, None)
            return result
        return None

    async def _make_known(self, desired: Desired, *, is_candidate: bool) -> None:
        """Find the files of a version, tell the listeners and enter it. `keep` removes it again if it is not wanted any
        more."""
        found, key = await self._bound(desired), (desired.model.name, desired.version)
        version = ServedVersion(desired, found.directory, int(self._clock.time()), is_candidate)
        try:
            for listener in self.listeners:
                await listener.version_added(version)
        except BaseException:
            self._tell_removed(key)
            raise
        self.known[key] = version
        self.problems.pop(version_name(*key), None)

    async def _bound(self, desired: Desired) -> Checkpoints:
        """The files that a version was deployed with, which its replicas load."""
        found = await asyncio.to_thread(find_checkpoints, desired.model)
        await asyncio.to_thread(check_binding, desired.fingerprints, found)
        if desired.version and desired.fingerprints is None and self._bind is not None:
            fingerprints = await asyncio.to_thread(fingerprints_of, found)
            with suppress(StoreAwayError):  # the next replica that starts binds it
                await self._bind(desired.model.name, desired.version, fingerprints)
        return found
