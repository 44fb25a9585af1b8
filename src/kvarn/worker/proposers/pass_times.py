"""Times of a proposer's forward passes."""

from __future__ import annotations


class PassTimes:
    """Seconds of a pass by the number of its rows: a decaying average for each power of two."""

    WEIGHT = 0.2  # weight of the latest time in the average

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        """Averages by the number of binary digits of the rows."""

    def observe(self, rows: int, seconds: float) -> None:
        """Average a pass in. One held up by the machine counts as at most twice what was expected."""
        digits = rows.bit_length()
        average = self._seconds.get(digits)
        if average is None:
            self._seconds[digits] = seconds
        else:
            self._seconds[digits] += self.WEIGHT * (min(seconds, 2 * average) - average)

    def expected(self, rows: int) -> float:
        """Seconds of passes of about `rows` rows, or of the next smaller number that was timed."""
        digits = rows.bit_length()
        known = [each for each in self._seconds if each <= digits] or list(self._seconds)
        return self._seconds[max(known)] if known else 0.0
