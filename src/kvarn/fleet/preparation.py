"""Work in the background of the controller's passes: a checkpoint may have to be downloaded from the hub."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kvarn.clock import SYSTEM_CLOCK, Clock

_FIRST_PAUSE_S, _MAX_PAUSE_S = 1.0, 60.0

ResultT = TypeVar("ResultT")


class PreparingError(Exception):
    """The work is under way, and has not failed yet."""


@dataclass
class _Work(Generic[ResultT]):
    task: asyncio.Task[ResultT]
    pause_s: float = _FIRST_PAUSE_S
    failed: Exception | None = None
    retry_at: float = 0.0


class Preparations(Generic[ResultT]):
    """Pieces of work by key, each in a task of its own; `on_ended` is called when one has ended. One that fails is done
    again after a pause that doubles."""

    def __init__(self, on_ended: Callable[[], None], clock: Clock = SYSTEM_CLOCK) -> None:
        self._on_ended = on_ended
        self._clock = clock
        self._works: dict[Hashable, _Work[ResultT]] = {}

    def result(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """The result of the work, once; begins the work if need be. Raises `PreparingError` while it is under way, and
        what it failed with."""
        found = self._works.get(key)
        if found is None:
            self._works[key] = _Work(self._begin(work))
            raise PreparingError
        if found.task.done():
            error = found.task.exception()
            if error is None:
                del self._works[key]
                return found.task.result()
            self._retry(found, error, work)
        if found.failed is None:
            raise PreparingError
        raise found.failed

    def keep(self, keys: Collection[Hashable]) -> None:
        """Give up all other work."""
        for key in [*self._works.keys() - set(keys)]:
            self._works.pop(key).task.cancel()

    async def stop(self) -> None:
        tasks = [each.task for each in self._works.values()]
        self.keep(())
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, work: Callable[[], Coroutine[Any, Any, ResultT]]) -> asyncio.Task[ResultT]:
        task = asyncio.create_task(work())
        task.add_done_callback(lambda done: None if done.cancelled() else self._on_ended())
        return task

    def _retry(self, found: _Work[ResultT], error: BaseException, work: Callable[[], Any]) -> None:
        """Note a failure; repeat the work after its pause."""
        if not isinstance(error, Exception):
            raise error
        now = self._clock.now()
        if found.failed is not error:
            found.failed, found.retry_at = error, now + found.pause_s
            found.pause_s = min(2 * found.pause_s, _MAX_PAUSE_S)
        elif now >= found.retry_at:
            found.task = self._begin(work)
