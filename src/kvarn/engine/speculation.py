"""Which guesses are verified in a step: those that bring more tokens a second than the step brings without them.

A step with N decode rows takes T seconds and brings N tokens. A proposal that is drawn with probability p adds p tokens
and the seconds of one more token in the forward pass, for all rows of the step. So it pays exactly where p over its
seconds is more than the tokens over the seconds of the step so far, and the likeliest are added first. Prompts beside
the decodes count for neither: they take their time anyway.

How likely a proposal is right is a decaying average, by position in the row, of the sequence's own guesses, and of all
guesses of this grade where it has few. What has not been tried for a while fades back to what was expected, so that it
is tried again. Guesses that cost nothing are compared with the tokens drawn even where none was verified.
Looking for such a guess takes time too (`kvarn.engine.looks`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Items
from dataclasses import dataclass

from kvarn.config.speculation import SpeculationConfig
from kvarn.engine.kv_memory import KVMemory
from kvarn.engine.looks import Looks, Trial
from kvarn.engine.proposer import NO_GUESS, Acceptance, Guess, GuessRecord, Proposer, SpeculationTotals
from kvarn.engine.request import Sequence
from kvarn.engine.step import StepBuilder
from kvarn.engine.step_time import StepTimeModel


@dataclass(frozen=True, slots=True)
class _Prices:
    """What the step takes without proposals, and what one adds."""

    rows: int
    """Sequences that get a token without proposals."""
    step_s: float
    token_s: float
    pair_s: float

    def proposal_s(self, context: int) -> float:
        """Seconds of a proposal at position `context`."""
        return max(self.token_s + self.pair_s * context, 1e-12)


@dataclass(frozen=True, slots=True)
class _Candidate:
    sequence: Sequence
    record: GuessRecord
    end: int
    """Position of its first proposal."""
    limit: int
    """Proposals at most."""


class Speculation:
    """Asks the proposer, and chooses how many of its guesses each row of a step verifies."""

    MARGIN = 1.1
    """By this factor a proposal must beat the step without it: predictions err."""
    PAUSE = 8
    """Steps before one is looked at again, where guessing takes time."""
    KNOWN_AFTER = 8
    """Steps, after one with proposals, in which no step is planned before the result of the one before is there."""
    PROBE_EVERY = 256
    """Where guessing takes too long, one sequence is guessed for so often, in steps: its time is measured then."""
    OWN_WEIGHT = 3.0
    """A sequence's own average counts as much as that of all guesses once it has so many observations."""
    GRADE_WEIGHT = 8.0

    def __init__(self, proposer: Proposer, config: SpeculationConfig, step_time: StepTimeModel) -> None:
        self.totals = SpeculationTotals(accepted_by_position=[0] * config.length)
        self._proposer = proposer
        self._step_time = step_time
        self._length = config.length
        self._adaptive = config.adaptive
        self._common = [Acceptance(self._length, 0.98, 0.999) for _ in proposer.grades]
        self._looks = Looks(always=not config.adaptive or not proposer.is_free)
        self._last_prices = _Prices(1, 0.0, 0.0, 0.0)
        self._now = 0
        self._left_alone = 0
        self._needs_results_until = self.KNOWN_AFTER
        self._trial = Trial(always=not config.adaptive)

    @property
    def needs_results(self) -> bool:
        """Whether the next step shall wait for the result of the last: guesses need all known tokens."""
        return self._now < self._needs_results_until

    def extend(self, step: StepBuilder, memory: KVMemory, *, ahead: bool) -> None:
        """Add proposals to the rows of a step, in the budget and the memory that it leaves.

        `ahead`: steps are in flight. Then it is only found out whether guesses would be worth waiting for them.
        """
        self._now += 1
        if not self._trial.goes_on(self._now, self._proposer.overhead_s):
            return
        if not step.tokens_left or (self._now < self._looks.next and not step.admitted):
            return
        prices = self._prices(step)
        if self._adaptive and self.MARGIN * prices.token_s * prices.rows >= prices.step_s:
            return  # a proposal that is surely right would not pay
        self._last_prices = prices
        self._looks.price(self._proposer.seconds(1), prices.rows, prices.step_s)
        candidates = self._candidates(step)
        if not candidates:
            return
        if self._proposer.is_free:
            guesses = self._proposer.propose([(each.sequence, each.limit) for each in candidates])
            lengths = self._choose(candidates, guesses, prices, step.tokens_left)
        else:
            lengths = self._choose_levels(candidates, prices, step.tokens_left)
            guesses = [NO_GUESS] * len(candidates) if ahead else self._ask(candidates, lengths)
        for candidate, guess, length in zip(candidates, guesses, lengths, strict=True):
            if not length:
                self._put_off(candidate, guess)
                continue
            self._looks.expect(self._now + 1)
            if ahead:
                self._needs_results_until = self._now + self.KNOWN_AFTER
            elif guess.tokens:
                self._propose(candidate, Guess(guess.tokens[:length], guess.grade), step, memory)

    def observe(self, sequence: Sequence, proposed: int, accepted: int) -> None:
        """A row's proposals were verified."""
        totals, record, prices = self.totals, sequence.guesses, self._last_prices
        totals.rows += 1
        totals.proposed += proposed
        totals.accepted += accepted
        for place in range(accepted):
            totals.accepted_by_position[place] += 1
        assert record is not None, "who proposed has a record"
        self._learn(record, proposed, accepted)
        saved_s = accepted * max(0.0, prices.step_s - self._proposer.overhead_s) / prices.rows
        saved_s -= proposed * prices.proposal_s(sequence.num_tokens)
        self._trial.saved(saved_s)
        self._looks.looked(record, self._now, saved_s)

    def forget(self, sequence: Sequence) -> None:
        """The sequence ended."""
        self._proposer.forget(sequence)
        sequence.guesses = None

    def forget_tenant(self, tenant: str) -> None:
        """The tenant is deleted."""
        self._proposer.forget_tenant(tenant)

    # Who may be guessed for ------------------------------------------------------------------------------------------

    def _candidates(self, step: StepBuilder) -> list[_Candidate]:
        found: list[_Candidate] = []
        now, length = self._now, min(self._length, step.tokens_left)
        self._looks.begin(now)
        for sequence, num_tokens in step.rows.items():
            record = sequence.guesses
            if record is None:
                record = sequence.guesses = self._looks.enter(GuessRecord(self._length), now)
            end = sequence.num_computed_tokens + num_tokens
            limit = min(length, sequence.request.max_length - end - 1)
            if record.due > now or limit <= 0 or end != sequence.num_tokens:
                self._looks.expect(max(record.due, now + 1))
                continue
            if record.unverified:
                compared = record.compare(sequence.tokens)
                if compared is not None:
                    self._learn(record, *compared)
            found.append(_Candidate(sequence, record, end, limit))
        return found

    def _put_off(self, candidate: _Candidate, guess: Guess) -> None:
        """Nothing of it is verified: see what becomes of it."""
        record = candidate.record
        record.unverified, record.grade = guess.tokens, guess.grade
        record.unverified_at = len(candidate.sequence.tokens)
        if self._proposer.is_free:
            self._looks.looked(record, self._now, 0.0)
        else:
            record.due = self._now + self.PAUSE
            self._looks.expect(record.due)

    def _propose(self, candidate: _Candidate, guess: Guess, step: StepBuilder, memory: KVMemory) -> None:
        end = candidate.end + len(guess.tokens)
        if memory.can_extend(candidate.sequence, end):
            memory.reserve(candidate.sequence, end, [])
            step.propose(candidate.sequence, guess.tokens)
            candidate.record.grade = guess.grade
            self._needs_results_until = self._now + self.KNOWN_AFTER

    # How many --------------------------------------------------------------------------------------------------------

    def _prices(self, step: StepBuilder) -> _Prices:
        times, rows = self._step_time.fitted, max(1, step.shape.decode_rows)
        step_s = times.decode_s(rows, step.shape.decode_context)
        return _Prices(rows, step_s, times.decode_row_s, times.prefill_pair_s)

    def _choose(
        self, candidates: Items[_Candidate], guesses: Items[Guess], prices: _Prices, tokens_left: int
    ) -> list[int]:
        """How many of each guess are verified: the likeliest for their seconds first, as long as each pays."""
        if not self._adaptive:
            return _within_budget([len(guess.tokens) for guess in guesses], tokens_left)
        lengths, chances = [0] * len(guesses), []
        expected, seconds, heap = float(prices.rows), prices.step_s, []
        for index, (candidate, guess) in enumerate(zip(candidates, guesses, strict=True)):
            cost = prices.proposal_s(candidate.end)
            least = self.MARGIN * cost * expected / seconds if seconds else 1.0
            own = self._chances(candidate.record, guess.grade, len(guess.tokens), least)
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

    def _choose_levels(self, candidates: Items[_Candidate], prices: _Prices, tokens_left: int) -> list[int]:
        """How many tokens to guess for each, where the n-th guesses of all sequences are made together."""
        if not self._adaptive:
            return _within_budget([candidate.limit for candidate in candidates], tokens_left)
        lengths, most = [0] * len(candidates), self._length
        expected, seconds = float(prices.rows), prices.step_s
        costs = [prices.proposal_s(candidate.end) for candidate in candidates]
        least_s = self._proposer.call_s / most + self._proposer.seconds(len(candidates)) + sum(costs)
        if len(candidates) * seconds <= self.MARGIN * least_s * expected:  # not even if all were right
            self._left_alone += 1
            if self._left_alone % self.PROBE_EVERY == 0:  # perhaps times have changed
                lengths[0] = min(candidates[0].limit, 2)
            return lengths
        chances = [self._chances(each.record, 0, each.limit, 0.0) for each in candidates]
        seconds += self._proposer.call_s
        for level in range(most):
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
            return [0] * len(candidates)
        return lengths

    def _ask(self, candidates: Items[_Candidate], lengths: Items[int]) -> list[Guess]:
        chosen = [index for index, length in enumerate(lengths) if length]
        guesses = [NO_GUESS] * len(candidates)
        if chosen:
            found = self._proposer.propose([(candidates[index].sequence, lengths[index]) for index in chosen])
            for index, guess in zip(chosen, found, strict=True):
                guesses[index] = guess
            self._trial.saved(-self._proposer.call_s - max(lengths) * self._proposer.seconds(len(chosen)))
        return guesses

    # How likely ------------------------------------------------------------------------------------------------------

    def _chances(self, record: GuessRecord, grade: int, count: int, least: float) -> list[float]:
        """Probabilities that the first, the first two, ... of a guess are right, as long as they are above `least`."""
        own, common, expected = record.acceptance, self._common[grade], self._proposer.grades[grade]
        own_weight, common_weight = own.weight(self._now), common.weight(self._now)
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

    def _learn(self, record: GuessRecord, proposed: int, accepted: int) -> None:
        record.acceptance.observe(proposed, accepted, self._now)
        self._common[record.grade].observe(proposed, accepted, self._now)


def _within_budget(lengths: list[int], tokens_left: int) -> list[int]:
    granted: list[int] = []
    for length in lengths:
        granted.append(min(length, tokens_left))
        tokens_left -= granted[-1]
    return granted
