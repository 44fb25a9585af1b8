"""A batch that this gateway has leased."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from kvarn.answers.record import RequestRecord
from kvarn.clock import SYSTEM_CLOCK
from kvarn.jobs.worker import Job
from kvarn.store.models import Batch
from kvarn.store.owner import Owner, Principal


class EndReason(Enum):
    """Why no more lines of a batch are run."""

    CANCELLED = "its client cancelled it"
    EXPIRED = "its window is over"
    KEY_GONE = "the key that made it is not valid any more"


@dataclass(slots=True, eq=False)
class BatchJob(Job):
    """A batch, as it was when it was last looked at, and what is known of its run."""

    holder: str
    row: Batch
    losses: Counter[int] = field(default_factory=Counter)
    """By line: how often the engine died beside it."""
    principal: Principal | None = None
    """The principal of its lines: their key as it was when it was last valid."""
    end_reason: EndReason | None = None
    full: bool = False
    """Its organization stores as much as it may: a pause, not an end."""
    preempted: asyncio.Event = field(default_factory=asyncio.Event)
    """No more lines are begun; those in an engine are the last of this run."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the row is changed: `row` is never older than a change made here."""
    requests: dict[int, RequestRecord] = field(default_factory=dict)  # lines that are being run, by number
    progress_at: float = field(default_factory=SYSTEM_CLOCK.now)
    """Time at which a line was last in an engine, or answered. Monotonic seconds."""

    @property
    def owner(self) -> Owner:
        return Owner(self.row.organization_id, self.row.project_id)

    def end(self, reason: EndReason) -> None:
        """Run no more lines. A batch that was to expire may still be cancelled."""
        self.end_reason = reason
        self.wake.set()

    def preempt(self) -> None:
        """Begin no more lines, so that another batch gets the place."""
        self.preempted.set()
        self.wake.set()

    def note_progress(self, now: float) -> None:
        """A line that is past admission is progress."""
        if any(request.turns for request in self.requests.values()):
            self.progress_at = now
