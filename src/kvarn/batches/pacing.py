"""When lines that are held up go on, when their batch makes room for another, and which lines are not tried again."""

from __future__ import annotations

from collections import Counter, defaultdict

PARK_S = 5.0
"""A batch that gets nowhere for longer makes room for another."""

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_MOST_LOSSES = 5
"""A line beside which the engine died so often is not tried again: it may be what kills it."""


class Pacing:
    """What the lines of one batch that ask for one model have met with. It outlives the runs of the batch, so that one
    which comes back to the same refusal does not begin anew. Pure: told the time.

    Whatever holds up one of them holds up the next, so all of them pause: until the time that is named, else twice as
    long each time, until a line is answered.
    """

    def __init__(self) -> None:
        self._resume_at = 0.0
        self._next_pause_s = _FIRST_PAUSE_S
        self._progress_at = 0.0
        self._losses: Counter[int] = Counter()

    def taken(self, now: float) -> None:
        """The batch has a place again: the time without one does not count as having got nowhere."""
        self._progress_at = now

    def answered(self, now: float) -> None:
        """A line went well."""
        self._progress_at = now
        self._next_pause_s = _FIRST_PAUSE_S

    def hold_up(self, now: float, named_s: float | None = None) -> float:
        """A line was refused, or found no room.

        Args:
            now: Monotonic seconds.
            named_s: When to come back, where the refusal says so.

        Returns:
            Seconds of the pause that begins now; 0 in a pause: what becomes of lines that were in flight together is
            one hold-up.
        """
        if now < self._resume_at:
            return 0.0
        pause = named_s or self._next_pause_s
        self._next_pause_s = min(2 * self._next_pause_s, _LONGEST_PAUSE_S)
        self._resume_at = now + pause
        return pause

    def lost(self, line: int) -> bool:
        """The engine died beside a line; whether this is to be its end."""
        self._losses[line] += 1
        return self._losses[line] >= _MOST_LOSSES

    def pause_s(self, now: float) -> float:
        """Seconds for which no line is begun yet."""
        return max(0.0, self._resume_at - now)

    def rest_s(self, now: float) -> float:
        """Seconds for which they are put off, where they would hold the batch's place in vain for longer than that is
        worth; else 0."""
        pause = self.pause_s(now)
        in_vain = now + pause - self._progress_at
        return max(pause, PARK_S) if pause and in_vain > PARK_S else 0.0


Pacings = defaultdict[str, Pacing]
"""What all lines of one batch have met with, by the name of their model."""
