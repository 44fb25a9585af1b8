"""Number of guesses verified in a step: those that bring more tokens a second than the step brings without them.

A step with N decode rows takes T seconds and brings N tokens. A proposal that is drawn with probability p adds p tokens
and the seconds of one more token in the forward pass, for all rows of the step. So it pays exactly where p over its
seconds is more than the tokens over the seconds of the step so far, and the likeliest are added first. Prompts beside
the decodes count for neither: they take their time anyway.

How likely a proposal is right is a decaying average, by position in the row, of the sequence's own guesses, and of all
guesses of this grade where it has few. What has not been tried for a while fades back to what was expected, so that it
is tried again.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Items
from dataclasses import dataclass

from kvarn.engine.proposals.proposer import Proposer
from kvarn.engine.proposals.record import Acceptance, GuessRecord
from kvarn.engine.step import StepBuilder
from kvarn.engine.step_time import StepTimeModel


@dataclass(frozen=True, slots=True)
class StepPrices:
    """Seconds of a step without proposals, and those that one adds."""

    rows: int  # sequences that get a token without proposals
    step_s: float
    token_s: float
    pair_s: float

    def proposal_s(self, context: int) -> float:
        return max(self.token_s + self.pair_s * context, 1e-12)


@dataclass(slots=True)
class ProposalRow:
    """A row that may get proposals, `limit` at most, the first at position `end`."""

    record: GuessRecord
    end: int
    limit: int


class ProposalBudget:
    """Spends the seconds of a step on proposals, as long as each pays."""

    MARGIN = 1.1
    """By this factor a proposal must beat the step without it: predictions err."""
    PROBE_EVERY = 256
    """Steps after which one sequence is guessed for although guessing takes too long: its time is measured then."""
    OWN_WEIGHT = 3.0
    """A sequence's own average counts as much as that of all guesses once it has so many observations."""
    GRADE_WEIGHT = 8.0

    def __init__(self, proposer: Proposer, length: int, step_time: StepTimeModel, *, adaptive: bool) -> None:
        """`length`: proposals of a row at most. `adaptive`: else as many as there are."""
        self.prices = StepPrices(1, 0.0, 0.0, 0.0)  # prices of the latest step that proposals were considered for
        self._proposer = proposer
        self._step_time = step_time
        self._length = length
        self._adaptive = adaptive
        self._common = [Acceptance(length, 0.98, 0.999) for _ in proposer.grades]
        self._skipped = 0

    def open(self, step: StepBuilder) -> bool:
        """Take the prices of a step; False where not even a proposal that is surely right would pay."""
        times, rows = self._step_time.fitted, max(1, step.shape.decode_rows)
        step_s = times.decode_s(rows, step.shape.decode_context)
        prices = StepPrices(rows, step_s, times.decode_row_s, times.prefill_pair_s)
        if self._adaptive and self.MARGIN * prices.token_s * prices.rows >= prices.step_s:
            return False
        self.prices = prices
        return True

    def observe(self, record: GuessRecord, proposed: int, accepted: int, now: int) -> None:
        """A sequence's guess was verified, or compared with what was drawn without it, in step `now`."""
        record.acceptance.observe(proposed, accepted, now)
        self._common[record.grade].observe(proposed, accepted, now)

    def lengths_of(
        self, rows: Items[ProposalRow], guesses: Items[tuple[int, int]], tokens_left: int, now: int
    ) -> list[int]:
        """Tokens of each guess to verify, given its length and its grade: the likeliest for their seconds first."""
        if not self._adaptive:
            return _first_come([count for count, _ in guesses], tokens_left)
        prices, lengths, chances = self.prices, [0] * len(guesses), []
        expected, seconds, heap = float(prices.rows), prices.step_s, []
        for index, (row, (count, grade)) in enumerate(zip(rows, guesses, strict=True)):
            cost = prices.proposal_s(row.end)
            least = self.MARGIN * cost * expected / seconds if seconds else 1.0
            own = self._chances(row.record, grade, count, least, now)
            chances.append(own)
            if own:
                heap.append((-own[0] / cost, index, cost))
        heapq.heapify(heap)
        while heap and tokens_left:
            _, index, cost = heapq.heappop(heap)
            gain = chances[index][lengths[index]]
            if gain * seconds <= self.MARGIN * cost * expected:
                break
            lengths[index] += 1
            tokens_left -= 1
            expected, seconds = expected + gain, seconds + cost
            if lengths[index] < len(chances[index]):
                heapq.heappush(heap, (-chances[index][lengths[index]] / cost, index, cost))
        return lengths

    def lengths_by_level(self, rows: Items[ProposalRow], tokens_left: int, now: int) -> list[int]:
        """Tokens to guess for each, where the n-th guesses of all sequences are made together."""
        if not self._adaptive:
            return _first_come([row.limit for row in rows], tokens_left)
        prices, lengths = self.prices, [0] * len(rows)
        expected, seconds = float(prices.rows), prices.step_s
        costs = [prices.proposal_s(row.end) for row in rows]
        least_s = self._proposer.call_s / self._length + self._proposer.seconds(len(rows)) + sum(costs)
        if len(rows) * seconds <= self.MARGIN * least_s * expected:  # not even if all were right
            self._skipped += 1
            if self._skipped % self.PROBE_EVERY == 0:  # perhaps times have changed
                lengths[0] = min(rows[0].limit, 2)
            return lengths
        chances = [self._chances(row.record, 0, row.limit, 0.0, now) for row in rows]
        seconds += self._proposer.call_s
        for level in range(self._length):
            price = self.MARGIN * expected / seconds
            chosen = [
                index
                for index, own in enumerate(chances)
                if level < len(own) and lengths[index] == level and own[level] > price * costs[index]
            ][:tokens_left]
            gain = sum(chances[index][level] for index in chosen)
            cost = sum(costs[index] for index in chosen) + self._proposer.seconds(len(chosen))
            if not chosen or gain <= price * cost:
                break
            for index in chosen:
                lengths[index] += 1
            tokens_left -= len(chosen)
            expected, seconds = expected + gain, seconds + cost
        if expected * prices.step_s < prices.rows * seconds:  # the call alone takes more than all of them bring
            return [0] * len(rows)
        return lengths

    def _chances(self, record: GuessRecord, grade: int, count: int, least: float, now: int) -> list[float]:
        """Probabilities that the first, the first two, ... of a guess are right, as long as they are above `least`."""
        own, common, expected = record.acceptance, self._common[grade], self._proposer.grades[grade]
        own_weight, common_weight = own.weight(now), common.weight(now)
        chances: list[float] = []
        chance = 1.0
        for place in range(count):
            of_grade = (common_weight * common.right[place] + self.GRADE_WEIGHT * expected) / (
                common_weight * common.tried[place] + self.GRADE_WEIGHT
            )
            chance *= (own_weight * own.right[place] + self.OWN_WEIGHT * of_grade) / (
                own_weight * own.tried[place] + self.OWN_WEIGHT
            )
            if chance <= least:
                break
            chances.append(chance)
        return chances


def _first_come(lengths: list[int], tokens_left: int) -> list[int]:
    granted: list[int] = []
    for length in lengths:
        granted.append(min(length, tokens_left))
        tokens_left -= granted[-1]
    return granted
