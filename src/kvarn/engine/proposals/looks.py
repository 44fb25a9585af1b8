"""In which steps guesses are asked for, where that takes time which guesses may not be worth.

`Looks` is for guesses that are cheap but not free. A look takes some microseconds of the engine's thread: nothing
beside the step of a large model with few sequences, much beside that of a small one with many. What looks have saved is
averaged, of each sequence and of all: where it is more than a look takes, the sequence's guess is looked for in each
step. The others are looked at together, every so many steps that it takes a small share of the time; the steps between
do nothing at all.

`Trial` is for proposers that take a part of each step while they are asked at all.
"""

from __future__ import annotations

import math

from kvarn.engine.proposals.proposer import GuessRecord


class Looks:
    """Steps are counted by the caller."""

    WEIGH_S = 10e-6
    """About what it takes to weigh a guess."""
    SHARE = 0.003
    """Of the time of steps, at most spent on looks where they have not paid."""
    GAIN_WEIGHT = 0.15
    """Of a sequence's last look in the average of what it saved."""
    COMMON_GAIN_WEIGHT = 0.02
    """Of the last look in the average over all sequences."""
    FIRST_GAIN_S = 1e-3
    """What looks save until some were made."""
    LONGEST_PAUSE = 64
    """Steps after which all are looked at again at the latest."""

    def __init__(self, always: bool) -> None:
        """`always`: look in each step."""
        self.next = 0
        """Step in which the next guess is due."""
        self._always = always
        self._gain_s = self.FIRST_GAIN_S
        """What looks save, over all sequences."""
        self._look_s = 0.0
        self._pause = 1
        self._together = 0
        """Step in which those are due that have not paid."""

    def price(self, look_s: float, rows: int, step_s: float) -> None:
        """What a look takes now, beside what steps take."""
        self._look_s = look_s + self.WEIGH_S
        affordable = self.SHARE * step_s
        pause = math.ceil(rows * self._look_s / affordable) if affordable else 1
        self._pause = min(pause, self.LONGEST_PAUSE)

    def begin(self, now: int) -> None:
        """Step `now` asks who is due: those that will be due later are to be told by `expect`."""
        self.next = now + self.LONGEST_PAUSE

    def expect(self, step: int) -> None:
        """Somebody's guess is due in that step."""
        self.next = min(self.next, step)

    def enter(self, record: GuessRecord, now: int) -> GuessRecord:
        """A sequence begins: looks at it are expected to save what those at others do."""
        record.gain_s = self._gain_s
        record.due = now if self._pays(record) else max(now, self._together)
        return record

    def looked(self, record: GuessRecord, now: int, saved_s: float) -> None:
        """A look has saved so many seconds; its tokens' verification is taken off."""
        self._gain_s += self.COMMON_GAIN_WEIGHT * (saved_s - self._gain_s)
        record.gain_s += self.GAIN_WEIGHT * (saved_s - record.gain_s)
        if self._pays(record):
            record.due = now + 1
        else:
            if self._together <= now:
                self._together = now + self._pause
            record.due = self._together
        self.expect(record.due)

    def _pays(self, record: GuessRecord) -> bool:
        return self._always or record.gain_s > self._look_s


class Trial:
    """Leaves a proposer alone for a while where guesses have saved less than they and its part of each step took."""

    LENGTH = 64
    """Steps after which that is seen."""
    REST = 1024
    """Steps in which it is left alone."""

    def __init__(self, always: bool) -> None:
        """`always`: never leave it alone."""
        self._always = always
        self._balance_s = 0.0
        self._steps = 0
        self._rests_until = 0

    def saved(self, seconds: float) -> None:
        """Guesses have saved so many seconds; less than 0 where they took them."""
        self._balance_s += seconds

    def goes_on(self, now: int, overhead_s: float) -> bool:
        """Whether guesses may be asked for in step `now`, of which the proposer takes `overhead_s` then."""
        if now < self._rests_until:
            return False
        self._balance_s -= overhead_s
        self._steps += 1
        if self._steps == self.LENGTH:
            if self._balance_s < 0 and overhead_s and not self._always:
                self._rests_until = now + self.REST
            self._balance_s, self._steps = 0.0, 0
        return True
