"""Sequential tests: evidence that may be looked at after each request and still raises few false alarms.

Each test keeps an e-value: a number that is 1 at first and that, while nothing is wrong, has a mean of at most 1 at
every time. By Ville's inequality it then ever reaches 1/a with a probability of at most a. So a test that is looked at
after each request, and fails when its e-value reaches 1/a, raises a false alarm with a probability of at most a,
however long it runs. E-values are kept as natural logarithms. All state is plain data that can be stored.

Sources: A. Wald, Sequential Tests of Statistical Hypotheses, 1945; R. Johari, P. Koomen, L. Pekelis and D. Walsh,
Peeking at A/B Tests, KDD 2017 (the mixture); S. Howard, A. Ramdas, J. McAuliffe and J. Sekhon, Time-uniform,
nonparametric, nonasymptotic confidence sequences, Annals of Statistics 2021 (the one-sided normal mixture), and by the
same, Time-uniform Chernoff bounds via nonnegative supermartingales, 2020 (symmetric differences, after V. de la Pena,
1999).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

_PRIOR = 1.5
"""Scale of the mixture over bets. A bet on differences of mean m and standard deviation s is best at m/(m² + s²), which
is 1 to 4 for the differences compared here: logarithms of ratios, and 1 or -1."""


class ErrorRateTest(msgspec.Struct, kw_only=True):
    """Wald's sequential probability ratio test of a rate: at most `tolerated`, or `unacceptable`?

    Its e-value is the ratio of likelihoods. There is no lower boundary: nothing is ever accepted for good.
    """

    tolerated: float
    unacceptable: float
    trials: int = 0
    failures: int = 0

    def add(self, failed: bool) -> None:
        self.trials += 1
        self.failures += failed

    @property
    def log_evidence(self) -> float:
        """Logarithm of the e-value against a rate of at most `tolerated`."""
        succeeded = math.log((1 - self.unacceptable) / (1 - self.tolerated))
        failed = math.log(self.unacceptable / self.tolerated)
        return self.failures * failed + (self.trials - self.failures) * succeeded


class DifferenceTest(msgspec.Struct, kw_only=True):
    """Are paired differences larger than `tolerance`?

    A difference is the candidate's value minus the stable version's for the same request, or for one as like it as can
    be told before it is answered. If the version makes no difference, either could have come from either, so that d is
    as likely as -d; nothing else is assumed: no variance, no distribution, no bound. For each bet b, exp(b S - b² V /
    2) is then an e-value, with the sum S and the sum of squares V of the differences less the tolerance. The test is
    the mixture of these over all b > 0, half-normally distributed.
    """

    tolerance: float = 0.0
    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, difference: float) -> None:
        self.count += 1
        self.total += difference
        self.squares += difference * difference

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    @property
    def log_evidence(self) -> float:
        """Logarithm of the e-value against differences of at most `tolerance`."""
        return self._log_evidence_above(self.tolerance)

    def _log_evidence_above(self, value: float) -> float:
        total = self.total - self.count * value
        squares = self.squares - 2 * value * self.total + self.count * value * value
        spread = 1 + _PRIOR**2 * max(0.0, squares)
        below = math.erfc(-_PRIOR * total / math.sqrt(2 * spread))  # twice the normal distribution function
        if below <= 0.0:
            return -math.inf
        return math.log(below) - math.log(spread) / 2 + (_PRIOR * total) ** 2 / (2 * spread)

    def lower_bound(self, false_alarm: float) -> float:
        """A value that the true difference is not below, at any time, but with probability `false_alarm`.

        It is the largest value against which the test has enough evidence. -inf where there is none.
        """
        needed = math.log(1 / false_alarm)
        if not self.count:
            return -math.inf
        # Below the mean the evidence grows, and falls again far below, where all differences are alike. Any value with
        # enough speaks for all below it.
        high, reach = self.mean, max(1e-9, math.sqrt(self.squares) / self.count / 16)
        while self._log_evidence_above(low := high - reach) < needed:
            reach *= 1.25
            if reach > 1e9:
                return -math.inf
        for _ in range(60):
            middle = (low + high) / 2
            if self._log_evidence_above(middle) >= needed:
                low = middle
            else:
                high = middle
        return low


class SignTest(msgspec.Struct, kw_only=True):
    """Pairs in which only one version shows something, such as a wrong answer: is it more often the candidate?

    If the versions are alike it is a toss. The e-value is the ratio of likelihoods, mixed over all chances from 1/2 to
    1 alike (the test of McNemar, made sequential). With w pairs in which the candidate shows it and v in which the
    stable version does, it is 2^(n+1) B(w+1, v+1) P(X <= w), n = w + v, X binomial of n + 1 tosses.
    """

    count: int = 0
    """Pairs, those too in which both or neither show it."""
    candidate: int = 0
    stable: int = 0

    def add(self, *, stable: bool, candidate: bool) -> None:
        self.count += 1
        if stable != candidate:
            self.candidate += candidate
            self.stable += stable

    @property
    def mean(self) -> float:
        """The candidate's rate minus the stable version's."""
        return (self.candidate - self.stable) / self.count if self.count else 0.0

    @property
    def log_evidence(self) -> float:
        """Logarithm of the e-value against a candidate that shows it no more often."""
        return _log_sign_evidence(self.candidate, self.stable)

    @property
    def log_evidence_either_way(self) -> float:
        """The same against a candidate that shows it neither more nor less often."""
        return log_mean([self.log_evidence, _log_sign_evidence(self.stable, self.candidate)])


def _log_sign_evidence(more: int, less: int) -> float:
    tosses = more + less + 1
    below = sum(math.comb(tosses, heads) for heads in range(more + 1))  # of 2**tosses
    return math.log(below) + math.lgamma(more + 1) + math.lgamma(less + 1) - math.lgamma(tosses + 1)


def log_mean(logarithms: Iterable[float]) -> float:
    """Logarithm of the mean of what these are logarithms of. The mean of e-values is an e-value."""
    values = list(logarithms)
    largest = max(values)
    if math.isinf(largest):
        return largest
    return largest + math.log(sum(math.exp(value - largest) for value in values) / len(values))


def log_evidence_since(begun: Iterable[float], starts: int) -> float:
    """Logarithm of the e-value of tests that begin at `starts` times, by those (`log_evidence`) of the tests that have.

    A version may become worse in the middle, as when it takes more of the load. Then what was seen before hides it. So
    a test of its own begins at each of these times; their mean counts, those that have not begun with the 1 they begin
    with.
    """
    evidence = list(begun)
    return log_mean(evidence + [0.0] * (starts - len(evidence)))
