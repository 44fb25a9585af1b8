"""Detection of an engine that hangs while it loads."""

from __future__ import annotations

from kvarn.replica.session_work import SessionWork


class StartProgress:
    """Progress of one start. Time passes in `passed`, which counts turns of a loop that reads messages.

    Heartbeats alone show that a process lives, not that it gets on: they come from a thread of their own. A report of
    a further stage, and work done (`SessionWork.amount`), show that it does.

    Args:
        still_s: Seconds after which a process of this machine that neither speaks nor computes is stopped for good.
        idle_s: Seconds without progress after which the start hangs.
    """

    def __init__(self, still_s: float, idle_s: float) -> None:
        self._still_limit_s = still_s
        self._idle_limit_s = idle_s
        self._still_s = self._idle_s = 0.0
        self._work = 0.0
        self._seen: SessionWork | None = None

    def heard(self, work: float) -> None:
        """A heartbeat came, with the work that the engine has done."""
        self._still_s = 0.0
        self._note(work)

    def reported(self) -> None:
        self._still_s = self._idle_s = 0.0

    def seen(self, done: SessionWork) -> None:
        if done.waits_for_disk or done != self._seen:
            self._still_s = 0.0
        self._seen = done
        self._note(done.amount)

    def passed(self, seconds: float, *, is_seen: bool) -> str | None:
        """Time has passed. `is_seen`: the process runs here, where `seen` tells of it. Returns why the start is given
        up; None: it goes on."""
        self._idle_s += seconds
        self._still_s += seconds
        if is_seen and self._still_s > self._still_limit_s:
            return f"the engine stood still for {self._still_limit_s:g} s while it started"
        if self._idle_s > self._idle_limit_s:
            return f"the engine made no progress for {self._idle_limit_s:g} s while it started"
        return None

    def _note(self, work: float) -> None:
        if work >= self._work + 1 or work < self._work - 1:
            self._work, self._idle_s = work, 0.0
