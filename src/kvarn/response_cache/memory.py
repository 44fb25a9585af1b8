"""Answers in the memory of a gateway process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from kvarn.response_cache.store import Answer
from kvarn.store.owner import Principal

_OVERHEAD = 256
"""Bytes of an entry besides its content, about."""


@dataclass(slots=True)
class _Project:
    salt: str
    answers: OrderedDict[bytes, tuple[Answer, float]] = field(default_factory=OrderedDict)
    """With the times at which they end; the one used last comes last."""
    bytes: int = 0


class MemoryAnswers:
    """An `AnswerStore` bounded for each project and as a whole: what was not used for longest goes first, of the
    project that is full, or of the one not used for longest.

    Args:
        project_bytes: Most bytes of one project.
        all_bytes: Most bytes of all projects.
        now: The wall clock.
        on_size: Hears how many bytes there are.
    """

    def __init__(
        self, project_bytes: int, all_bytes: int, now: Callable[[], float], on_size: Callable[[float], None]
    ) -> None:
        self._project_bytes = project_bytes
        self._all_bytes = all_bytes
        self._now = now
        self._on_size = on_size
        self._projects = OrderedDict[str, _Project]()
        self._bytes = 0

    async def get(self, principal: Principal, key: bytes) -> Answer | None:
        project = self._project(principal)
        found = None if project is None else project.answers.get(key)
        if project is None or found is None:
            return None
        answer, ends_at = found
        if ends_at <= self._now():
            self._drop(project, key)
            return None
        project.answers.move_to_end(key)
        return answer

    def put(self, principal: Principal, key: bytes, answer: Answer, ttl_s: float) -> None:
        size = len(answer.content) + _OVERHEAD
        if size > min(self._project_bytes, self._all_bytes):
            return
        project = self._project(principal)
        if project is None:
            project = self._projects[principal.project_id] = _Project(principal.cache_salt)
        if key in project.answers:
            self._drop(project, key)
        project.answers[key] = answer, self._now() + ttl_s
        project.bytes += size
        self._bytes += size
        while project.bytes > self._project_bytes:
            self._drop(project, next(iter(project.answers)))
        while self._bytes > self._all_bytes:
            name, oldest = next(iter(self._projects.items()))
            if oldest.answers:
                self._drop(oldest, next(iter(oldest.answers)))
            else:
                del self._projects[name]
        self._on_size(self._bytes)

    async def sweep(self) -> None:
        """Drop what has ended: answers of projects that ask no more are not found, but would stay in memory."""
        now = self._now()
        for name, project in list(self._projects.items()):
            for key in [key for key, (_, ends_at) in project.answers.items() if ends_at <= now]:
                self._drop(project, key)
            if not project.answers:
                del self._projects[name]
        self._on_size(self._bytes)

    async def close(self) -> None:
        self._projects.clear()

    def _project(self, principal: Principal) -> _Project | None:
        """The answers of the principal's project; those of an older salt are dropped."""
        project = self._projects.get(principal.project_id)
        if project is None:
            return None
        if project.salt != principal.cache_salt:
            self._bytes -= project.bytes
            del self._projects[principal.project_id]
            self._on_size(self._bytes)
            return None
        self._projects.move_to_end(principal.project_id)
        return project

    def _drop(self, project: _Project, key: bytes) -> None:
        answer, _ = project.answers.pop(key)
        size = len(answer.content) + _OVERHEAD
        project.bytes -= size
        self._bytes -= size
