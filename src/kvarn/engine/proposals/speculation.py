"""Proposals of a step: the proposer is asked for the rows that are due, and what pays is added to them.

Guesses that cost nothing are compared with the tokens drawn even where none was verified.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from kvarn.config.speculation import SpeculationConfig
from kvarn.engine.memory.kv_cache_manager import KVCacheManager
from kvarn.engine.proposals.budget import ProposalBudget, ProposalRow
from kvarn.engine.proposals.proposer import NO_GUESS, Guess, Proposer
from kvarn.engine.proposals.record import GuessRecord, SpeculationTotals
from kvarn.engine.proposals.throttle import ProposalThrottle, ProposerBackoff
from kvarn.engine.request import Sequence
from kvarn.engine.step import StepBuilder
from kvarn.engine.step_time import StepTimeModel


@dataclass(slots=True)
class Candidate(ProposalRow):
    """A sequence whose guess is due."""

    sequence: Sequence


class Speculation:
    """Asks the proposer, and gives rows as many of its guesses as the budget grants."""

    PAUSE = 8
    """Steps before a sequence is considered again, where guessing takes time."""
    KNOWN_AFTER = 8
    """Steps, after one with proposals, in which no step is planned before the result of the one before is there."""

    def __init__(self, proposer: Proposer, config: SpeculationConfig, step_time: StepTimeModel) -> None:
        self.totals = SpeculationTotals(accepted_by_position=[0] * config.length)
        self._proposer = proposer
        self._length = config.length
        self._budget = ProposalBudget(proposer, config.length, step_time, adaptive=config.adaptive)
        self._throttle = ProposalThrottle(always=not config.adaptive or not proposer.is_free)
        self._backoff = ProposerBackoff(never=not config.adaptive)
        self._now = 0  # number of the step
        self._needs_results_until = self.KNOWN_AFTER

    @property
    def needs_results(self) -> bool:
        """Whether the next step shall wait for the result of the last: guesses need all known tokens."""
        return self._now < self._needs_results_until

    def extend(self, step: StepBuilder, memory: KVCacheManager, *, ahead: bool) -> None:
        """Add proposals to the rows of a step, in the budget and memory left. `ahead`: steps are in flight; it is
        only found out whether guesses would be worth waiting for them."""
        self._now += 1
        if not self._backoff.allows(self._now, self._proposer.overhead_s):
            return
        if not step.tokens_left or (self._now < self._throttle.next_step and not step.admitted):
            return
        if not self._budget.open(step):
            return
        prices = self._budget.prices
        self._throttle.set_cost(self._proposer.seconds(1), prices.rows, prices.step_s)
        candidates = self._candidates(step)
        if not candidates:
            return
        for candidate, guess, length in zip(candidates, *self._choose(candidates, step, ahead=ahead), strict=True):
            if not length:
                self._postpone(candidate, guess)
                continue
            self._throttle.due(self._now + 1)
            if ahead:
                self._needs_results_until = self._now + self.KNOWN_AFTER
            elif guess.tokens:
                self._propose(candidate, Guess(guess.tokens[:length], guess.grade), step, memory)

    def observe(self, sequence: Sequence, proposed: int, accepted: int) -> None:
        totals, record, prices = self.totals, sequence.guesses, self._budget.prices
        totals.rows += 1
        totals.proposed += proposed
        totals.accepted += accepted
        for place in range(accepted):
            totals.accepted_by_position[place] += 1
        assert record is not None, "who proposed has a record"
        self._budget.observe(record, proposed, accepted, self._now)
        saved_s = accepted * max(0.0, prices.step_s - self._proposer.overhead_s) / prices.rows
        saved_s -= proposed * prices.proposal_s(sequence.num_tokens)
        self._backoff.add_savings(saved_s)
        self._throttle.observe(record, self._now, saved_s)

    def forget(self, sequence: Sequence) -> None:
        self._proposer.forget(sequence)
        sequence.guesses = None

    def forget_tenant(self, tenant: str) -> None:
        self._proposer.forget_tenant(tenant)

    def _candidates(self, step: StepBuilder) -> list[Candidate]:
        found: list[Candidate] = []
        now, length = self._now, min(self._length, step.tokens_left)
        self._throttle.begin(now)
        for sequence, num_tokens in step.rows.items():
            record = sequence.guesses
            if record is None:
                record = sequence.guesses = GuessRecord(self._length)
                self._throttle.add(record, now)
            end = sequence.num_computed_tokens + num_tokens
            limit = min(length, sequence.request.max_length - end - 1)
            if record.due > now or limit <= 0 or end != sequence.num_tokens:
                self._throttle.due(max(record.due, now + 1))
                continue
            if record.unverified:
                compared = record.compare(sequence.tokens)
                if compared is not None:
                    self._budget.observe(record, *compared, now)
            found.append(Candidate(record, end, limit, sequence))
        return found

    def _choose(self, candidates: Items[Candidate], step: StepBuilder, *, ahead: bool) -> tuple[list[Guess], list[int]]:
        if self._proposer.is_free:
            guesses = self._proposer.propose([(each.sequence, each.limit) for each in candidates])
            sizes = [(len(guess.tokens), guess.grade) for guess in guesses]
            return guesses, self._budget.lengths_of(candidates, sizes, step.tokens_left, self._now)
        lengths = self._budget.lengths_by_level(candidates, step.tokens_left, self._now)
        return [NO_GUESS] * len(candidates) if ahead else self._ask(candidates, lengths), lengths

    def _ask(self, candidates: Items[Candidate], lengths: Items[int]) -> list[Guess]:
        chosen = [index for index, length in enumerate(lengths) if length]
        guesses = [NO_GUESS] * len(candidates)
        if chosen:
            found = self._proposer.propose([(candidates[index].sequence, lengths[index]) for index in chosen])
            for index, guess in zip(chosen, found, strict=True):
                guesses[index] = guess
            taken_s = self._proposer.call_s + max(lengths) * self._proposer.seconds(len(chosen))
            self._backoff.add_savings(-taken_s)
        return guesses

    def _postpone(self, candidate: Candidate, guess: Guess) -> None:
        """Verify nothing of a guess; what is drawn tells whether it was right."""
        record = candidate.record
        record.unverified, record.grade = guess.tokens, guess.grade
        record.unverified_at = len(candidate.sequence.tokens)
        if self._proposer.is_free:
            self._throttle.observe(record, self._now, 0.0)
        else:
            record.due = self._now + self.PAUSE
            self._throttle.due(record.due)

    def _propose(self, candidate: Candidate, guess: Guess, step: StepBuilder, memory: KVCacheManager) -> None:
        end = candidate.end + len(guess.tokens)
        if memory.can_extend(candidate.sequence, end):
            memory.reserve(candidate.sequence, end, [])
            step.propose(candidate.sequence, guess.tokens)
            candidate.record.grade = guess.grade
            self._needs_results_until = self._now + self.KNOWN_AFTER
