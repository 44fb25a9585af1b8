"""Questions that were answered, for the semantic cache: by project, in the memory of a gateway process."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kvarn.clock import SYSTEM_CLOCK
from kvarn.response_cache.store import Answer
from kvarn.response_cache.threshold import NEAREST, Comparisons
from kvarn.store.owner import Principal

Vector = np.ndarray[tuple[int], np.dtype[np.float32]]
_PROJECTS = 1024
"""Projects whose questions are kept: those used last."""
_OVERHEAD = 512
"""Bytes of a question besides its vector, about."""
_COMPARED = 0.05
"""Share of the answers that may be given for which a model is asked all the same: what is learned stays true."""


@dataclass(slots=True, eq=False)
class Known:
    """A question whose answer is kept under `key`."""

    bucket: bytes
    key: bytes
    vector: Vector  # of length 1
    ends_at: float = math.inf  # when its answer does; monotonic seconds
    worst: float = 0.0  # greatest similarity of a question for which its answer was wrong

    @property
    def nbytes(self) -> int:
        return self.vector.nbytes + _OVERHEAD


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The nearest known question to one that is asked."""

    known: Known
    similarity: float
    may_answer: bool  # else the model is asked, and shows whether the answer would have been right


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question that a model answers."""

    bucket: bytes
    vector: Vector
    neighbour: Neighbour | None
    answer: Answer | None  # the neighbour's, which is compared with the model's


@dataclass(slots=True)
class _Project:
    salt: str
    comparisons: Comparisons
    known: OrderedDict[bytes, Known] = field(default_factory=OrderedDict)
    buckets: dict[bytes, dict[bytes, Known]] = field(default_factory=dict)


class Questions:
    """Known questions of all projects; those not used for longest go first.

    Args:
        bound: Share of wrong answers allowed.
        most: Questions of one project that are kept.
        most_bytes: Bytes of the questions of all projects that are kept.
        draw: Draws from 0 to 1.
        now: The monotonic clock.
    """

    def __init__(
        self,
        bound: float,
        most: int,
        most_bytes: int,
        draw: Callable[[], float] = random.random,
        now: Callable[[], float] = SYSTEM_CLOCK.now,
    ) -> None:
        self._bound = bound
        self._most = most
        self._most_bytes = most_bytes
        self._draw = draw
        self._now = now
        self._projects = OrderedDict[str, _Project]()
        self._bytes = 0

    def nearest(self, principal: Principal, bucket: bytes, vector: Vector) -> Neighbour | None:
        """The nearest question of a bucket: questions with the same contents, asked of the same model in the same
        context."""
        project = self._project(principal)
        found = list(project.buckets.get(bucket, {}).values())
        if not found:
            return None
        similarities = np.stack([known.vector for known in found]) @ vector
        place = int(np.argmax(similarities))
        known, similarity = found[place], float(similarities[place])
        if similarity < NEAREST:
            return None
        project.known.move_to_end(known.key)
        may_answer = project.comparisons.allows(similarity, known.worst) and self._draw() >= _COMPARED
        return Neighbour(known, similarity, may_answer)

    def learn(self, principal: Principal, neighbour: Neighbour, right: bool) -> None:
        """Take in that a neighbour's answer would have been right, or wrong."""
        self._project(principal).comparisons.add(neighbour.similarity, right)
        if not right:
            neighbour.known.worst = max(neighbour.known.worst, neighbour.similarity)

    def add(self, principal: Principal, bucket: bytes, key: bytes, vector: Vector, ttl_s: float = math.inf) -> None:
        """Remember a question whose answer is kept under `key` for so many seconds."""
        project, ends_at = self._project(principal), self._now() + ttl_s
        if key in project.known:
            project.known[key].ends_at = ends_at
            project.known.move_to_end(key)
            return
        known = project.known[key] = Known(bucket, key, vector, ends_at)
        project.buckets.setdefault(bucket, {})[key] = known
        self._bytes += known.nbytes
        if len(project.known) > self._most:
            self._drop(project, next(iter(project.known)))
        while self._bytes > self._most_bytes:
            oldest = next(each for each in self._projects.values() if each.known)
            self._drop(oldest, next(iter(oldest.known)))

    def forget(self, principal: Principal, key: bytes) -> None:
        """Forget a question whose answer is gone."""
        project = self._project(principal)
        if key in project.known:
            self._drop(project, key)

    def sweep(self) -> None:
        """Drop questions whose answers have ended, also of projects that ask no more."""
        now = self._now()
        for project in self._projects.values():
            for key in [key for key, known in project.known.items() if known.ends_at <= now]:
                self._drop(project, key)

    def threshold(self, principal: Principal) -> float | None:
        return self._project(principal).comparisons.threshold

    def _drop(self, project: _Project, key: bytes) -> None:
        known = project.known.pop(key)
        self._bytes -= known.nbytes
        bucket = project.buckets[known.bucket]
        del bucket[key]
        if not bucket:
            del project.buckets[known.bucket]

    def _project(self, principal: Principal) -> _Project:
        """The principal's project; with another salt it knows nothing, but what it has learned holds."""
        project = self._projects.get(principal.project_id)
        if project is None:
            project = self._projects[principal.project_id] = _Project(principal.cache_salt, Comparisons(self._bound))
            if len(self._projects) > _PROJECTS:
                _, oldest = self._projects.popitem(last=False)
                self._bytes -= sum(known.nbytes for known in oldest.known.values())
        elif project.salt != principal.cache_salt:
            self._bytes -= sum(known.nbytes for known in project.known.values())
            project = self._projects[principal.project_id] = _Project(principal.cache_salt, project.comparisons)
        self._projects.move_to_end(principal.project_id)
        return project
