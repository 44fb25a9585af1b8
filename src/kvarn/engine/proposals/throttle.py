"""In which steps guesses are asked for, where asking takes time that they may not be worth.

`ProposalThrottle` is for guesses that are cheap but not free. Asking for one takes some microseconds of the engine's
thread: nothing beside the step of a large model with few sequences, much beside that of a small one with many. The
seconds that guesses save are averaged, for each sequence and overall: where the average is more than asking takes, the
sequence's guess is asked for in each step. The others are asked for together, every so many steps that it takes a small
share of the time; the steps between do nothing at all.

`ProposerBackoff` is for proposers that take a part of each step while they are asked at all.
"""

from __future__ import annotations

import math

from kvarn.engine.proposals.record import GuessRecord


class ProposalThrottle:
    """The step in which each sequence's next guess is due. Steps are counted by the caller."""

    CHOICE_S = 10e-6
    """About what it takes to choose how much of a guess is verified."""
    SHARE = 0.003
    """Share of the time of steps spent at most on guesses that have not paid."""
    WEIGHT = 0.15  # weight of a sequence's latest guess in the average of the seconds saved
    COMMON_WEIGHT = 0.02  # weight of the latest guess in the average over all sequences
    FIRST_SAVED_S = 1e-3
    """Seconds that a guess is expected to save before some were made."""
    LONGEST_PAUSE = 64  # steps after which all are asked for again at the latest

    def __init__(self, always: bool) -> None:
        self.next_step = 0  # step in which the next guess is due
        self._always = always
        self._saved_s = self.FIRST_SAVED_S
        self._cost_s = 0.0
        self._pause = 1
        self._shared_step = 0  # step in which those are due that have not paid

    def set_cost(self, guess_s: float, rows: int, step_s: float) -> None:
        self._cost_s = guess_s + self.CHOICE_S
        affordable = self.SHARE * step_s
        pause = math.ceil(rows * self._cost_s / affordable) if affordable else 1
        self._pause = min(pause, self.LONGEST_PAUSE)

    def begin(self, now: int) -> None:
        self.next_step = now + self.LONGEST_PAUSE

    def due(self, step: int) -> None:
        self.next_step = min(self.next_step, step)

    def add(self, record: GuessRecord, now: int) -> None:
        """A sequence begins: its guesses are expected to save what those of others do."""
        record.saved_s = self._saved_s
        record.due = now if self._pays(record) else max(now, self._shared_step)

    def observe(self, record: GuessRecord, now: int, saved_s: float) -> None:
        """A guess has saved so many seconds, less what its verification took."""
        self._saved_s += self.COMMON_WEIGHT * (saved_s - self._saved_s)
        record.saved_s += self.WEIGHT * (saved_s - record.saved_s)
        if self._pays(record):
            record.due = now + 1
        else:
            if self._shared_step <= now:
                self._shared_step = now + self._pause
            record.due = self._shared_step
        self.due(record.due)

    def _pays(self, record: GuessRecord) -> bool:
        return self._always or record.saved_s > self._cost_s


class ProposerBackoff:
    """Pauses a proposer for a while where guesses have saved less than they and its part of each step took."""

    LENGTH = 64  # steps after which that is checked
    PAUSE = 1024  # steps without the proposer

    def __init__(self, never: bool) -> None:
        self._never = never
        self._balance_s = 0.0
        self._steps = 0
        self._paused_until = 0

    def add_savings(self, seconds: float) -> None:
        """Guesses have saved so many seconds; less than 0 where they took them."""
        self._balance_s += seconds

    def allows(self, now: int, overhead_s: float) -> bool:
        """Whether guesses may be asked for in step `now`, of which the proposer takes `overhead_s` then."""
        if now < self._paused_until:
            return False
        self._balance_s -= overhead_s
        self._steps += 1
        if self._steps == self.LENGTH:
            if self._balance_s < 0 and overhead_s and not self._never:
                self._paused_until = now + self.PAUSE
            self._balance_s, self._steps = 0.0, 0
        return True
