"""Guesses from earlier text: the tokens after the longest earlier occurrence of the text's end.

The idea is prompt lookup (Saxena 2023), with the longest match instead of one of fixed length, as suffix decoding has
it (Oliaro et al. 2024). It searches the sequence's own tokens, and recent answers of the same scope: tenant, cache salt
and adapter. No guess comes from another scope's text, whose presence could be told by the time an answer takes.

There is no index: tokens stand in arrays of 4 bytes each, and a compiled search compares the last token with all of
them, then those before it where it was found. That is a microsecond for thousands of tokens, and nothing is built for a
prompt. While guesses are right, the place of the last one is followed without a search. Where one token is another than
there (the value in a template, the new name of a variable), and no long match is found for it, the place is followed
behind it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from kvarn.clock import SYSTEM_CLOCK, Clock
from kvarn.config.speculation import SpeculationConfig
from kvarn.engine.proposals.proposer import NO_GUESS, Guess, Proposer
from kvarn.engine.request import Sequence
from kvarn.kernels.search import Tokens, longest_match
from kvarn.wire.block_names import PrefixScope
from kvarn.worker.proposers.pass_times import PassTimes

_NO_TOKEN = -1
"""Separator of two answers."""


class TokenLog:
    """Tokens in an array that grows; beyond `capacity` the older half is dropped."""

    __slots__ = ("_array", "_capacity", "length", "times_dropped")

    def __init__(self, size: int, capacity: int | None = None) -> None:
        self._array: Tokens = np.empty(size, dtype=np.int32)
        self._capacity = capacity
        self.length = 0
        self.times_dropped = 0  # each time positions have changed

    @property
    def nbytes(self) -> int:
        return self._array.nbytes

    def extend(self, tokens: list[int]) -> None:
        """Append tokens, fewer than half the capacity."""
        if self._capacity is not None and self.length + len(tokens) > self._capacity:
            kept = self._capacity // 2
            self._array[:kept] = self._array[self.length - kept : self.length]
            self.length = kept
            self.times_dropped += 1
        end = self.length + len(tokens)
        if end > len(self._array):
            grown = np.empty(max(end, 2 * len(self._array)), dtype=np.int32)
            grown[: self.length] = self._array[: self.length]
            self._array = grown
        if len(tokens) == 1:
            self._array[self.length] = tokens[0]
        else:
            self._array[self.length : end] = tokens
        self.length = end

    def last(self, count: int) -> Tokens:
        return self._array[max(0, self.length - count) : self.length]

    def longest_match(self, tail: Tokens) -> tuple[int, int]:
        """Latest place of the longest end of `tail` with a token behind it: the position after it, and its length;
        (0, 0) if not even the last token occurs."""
        return longest_match(self._array[: max(self.length - 1, 0)], tail)

    def following(self, position: int, count: int) -> list[int]:
        tokens: list[int] = self._array[position : min(position + count, self.length)].tolist()
        return tokens[: tokens.index(_NO_TOKEN)] if _NO_TOKEN in tokens else tokens


@dataclass(slots=True)
class _Text:
    """The tokens of one sequence, and where its last guess came from."""

    log: TokenLog
    source: TokenLog | None = None  # holds the last guess: the sequence's own tokens, or its scope's answers
    times_dropped: int = 0  # the source's `times_dropped` when the guess was made
    place: int = 0  # position of the last guess in it
    match: int = 0  # tokens before it that were the same
    skips_one: bool = False
    """The token before it is another than in the source."""


class NgramProposer(Proposer):
    """See `kvarn.engine.proposals.proposer.Proposer`. Not thread-safe. Memory: 4 to 8 bytes a token of the sequences
    that run, and at most `SCOPES` times `HISTORY` tokens of answers."""

    grades: tuple[float, ...] = (0.15, 0.15, 0.3, 0.5, 0.7, 0.85, 0.3)
    """Expected share by matching tokens: only the template's, 1, 2, 3 to 4, 5 to 8, more; one differs."""
    is_free: bool = True

    SCOPES = 256
    HISTORY = 8192
    """Tokens of answers that are kept of each scope."""
    SURE = 3
    """Tokens of a match that is better than to go on behind a token that is another, and that lead to this."""
    LEAD = 8
    """Tokens of a prompt's end kept before its answer, so that an answer's beginning can be found. So many are the chat
    template's: that they match says nothing."""

    def __init__(self, config: SpeculationConfig | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        config = config or SpeculationConfig()
        self._min_match = config.prompt_lookup_min
        self._max_match = config.prompt_lookup_max
        self._keeps_answers = config.tenant_history
        self._texts: dict[Sequence, _Text] = {}
        self._answers: OrderedDict[PrefixScope, TokenLog] = OrderedDict()
        self._deleted: set[str] = set()
        self._times = PassTimes()

    @property
    def nbytes(self) -> int:
        texts = sum(text.log.nbytes for text in self._texts.values())
        return texts + sum(answers.nbytes for answers in self._answers.values())

    def propose(self, wanted: Items[tuple[Sequence, int]]) -> list[Guess]:
        began = self._clock.now()
        guesses = [self._guess(sequence, limit) for sequence, limit in wanted]
        self._times.observe(1, (self._clock.now() - began) / max(1, len(wanted)))
        return guesses

    def seconds(self, num_sequences: int) -> float:
        return self._times.expected(1) * num_sequences

    def forget(self, sequence: Sequence) -> None:
        self._texts.pop(sequence, None)
        scope = sequence.request.scope
        if not self._keeps_answers or sequence.num_outputs < 2 or scope.tenant in self._deleted:
            return
        answers = self._answers.get(scope)
        if answers is None:
            answers = self._answers[scope] = TokenLog(512, self.HISTORY)
            if len(self._answers) > self.SCOPES:
                self._answers.popitem(last=False)
        self._answers.move_to_end(scope)
        first = max(0, sequence.num_prompt - self.LEAD)
        answers.extend([_NO_TOKEN, *sequence.tokens[first : first + self.HISTORY // 4]])

    def forget_tenant(self, tenant: str) -> None:
        """Drop its answers, and keep none of what still runs."""
        self._deleted.add(tenant)
        for scope in [each for each in self._answers if each.tenant == tenant]:
            del self._answers[scope]

    def _guess(self, sequence: Sequence, limit: int) -> Guess:
        tokens = sequence.tokens
        text = self._texts.get(sequence)
        if text is None:
            text = self._texts[sequence] = _Text(TokenLog(len(tokens) + 64))
        new = tokens[text.log.length :]
        if new:
            text.log.extend(new)
        if not self._follow(text, new):
            self._search(sequence.request.scope, text, len(new))
        if text.source is None:
            return NO_GUESS
        guess = text.source.following(text.place, limit)
        if text.source is text.log and 0 < len(guess) < limit:
            period = len(guess)  # the guess reaches the text's end: it goes on with itself
            guess = (guess * (limit // period + 1))[:limit]
        return Guess(guess, self._grade(text, sequence.num_outputs))

    def _grade(self, text: _Text, outputs: int) -> int:
        if text.skips_one:
            return len(self.grades) - 1
        match = min(text.match, outputs) if text.match <= outputs + self.LEAD else text.match
        return min((match - 1).bit_length() + 1, len(self.grades) - 2) if match else 0

    def _follow(self, text: _Text, new: list[int]) -> bool:
        source, count = text.source, len(new)
        if source is None or source.times_dropped != text.times_dropped:
            text.source = None
            return False
        ahead = source.following(text.place, count + 1)
        if ahead[:count] != new:
            if not count or ahead[: count - 1] != new[:-1] or len(ahead) <= count:
                text.source = None  # too different
            return False
        text.place += count
        text.match += count
        text.skips_one = text.skips_one and not count
        return len(ahead) > count

    def _search(self, scope: PrefixScope, text: _Text, num_new: int) -> None:
        source, tail = text.log, text.log.last(self._max_match)
        place, match = source.longest_match(tail)
        answers = self._answers.get(scope)
        if answers is not None and match < self._max_match:
            of_answers = answers.longest_match(tail)
            if of_answers[1] > match:
                source, (place, match) = answers, of_answers
        text.skips_one = text.source is not None and match < self.SURE <= text.match
        if text.skips_one:
            text.place, text.match = text.place + num_new, 0
        else:
            text.source = source if match >= self._min_match else None
            text.place, text.match, text.times_dropped = place, match, source.times_dropped
