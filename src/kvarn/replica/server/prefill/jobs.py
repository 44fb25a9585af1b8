"""Prompts that another engine computes for this one, as long as it does, and how fast it is. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvarn.engine.memory.remote_prefill import PeerLoad
from kvarn.engine.request import Sequence
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams

_SMOOTHING = 0.3

JobT = TypeVar("JobT", bound="PrefillJob")


@dataclass(slots=True)
class PrefillJob:
    """One prompt. `missing`: positions of the blocks that have not come."""

    tokens: int
    asked_s: float
    missing: set[int]


class PrefillJobs(Generic[JobT]):
    """The jobs that were asked for and have not ended, by any key."""

    def __init__(self) -> None:
        self._jobs: dict[Hashable, JobT] = {}
        self._token_s = self._busy_until_s = 0.0

    def load(self) -> PeerLoad:
        return PeerLoad(sum([job.tokens for job in self._jobs.values()]), self._token_s)

    def begin(self, key: Hashable, job: JobT) -> None:
        self._jobs[key] = job

    def get(self, key: Hashable) -> JobT | None:
        return self._jobs.get(key)

    def cancel(self, key: Hashable) -> JobT | None:
        """A job that is not waited for any more; None: it has ended."""
        return self._jobs.pop(key, None)

    def cancel_all(self) -> list[JobT]:
        jobs = list(self._jobs.values())
        self._jobs.clear()
        return jobs

    def end(self, key: Hashable, job: JobT, now: float) -> None:
        """Nothing more of it will come. One that is complete tells the speed of the other engine."""
        self._jobs.pop(key, None)
        if not job.missing:
            seconds = (now - max(job.asked_s, self._busy_until_s)) / job.tokens
            self._token_s += (seconds - self._token_s) * (_SMOOTHING if self._token_s else 1.0)
        self._busy_until_s = now


def prompt_of(sequence: Sequence, request_id: str) -> Submit:
    """The request by which another engine computes the prompt of a sequence."""
    request = sequence.request
    return Submit(
        request_id=request_id,
        prompt_token_ids=request.prompt,
        sampling=SamplingParams(seed=0, max_tokens=0),
        tenant=request.scope.tenant,
        weight=request.account.weight,
        priority=request.priority,
        cache_salt=request.scope.salt,
        adapter=request.scope.adapter,
    )
