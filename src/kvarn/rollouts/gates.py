"""The gates of a rollout: sequential tests of a new version against the stable one. Pure."""

from __future__ import annotations

import math
from functools import lru_cache

import msgspec

from kvarn.config.rollout import RolloutConfig
from kvarn.rollouts.statistics import DifferenceTest, ErrorRateTest, SignTest, log_evidence_since, log_mean
from kvarn.wire.rollouts import RequestOutcome

_LATENCY_FLOOR_S = 1e-3
"""Added to both of two latencies: differences below a millisecond do not matter."""
_LARGEST = math.log(2)
"""A larger ratio counts as 2, so that a stall does not outweigh all other samples. Both directions are cut alike, so
symmetric differences stay symmetric."""

GATES = ("errors", "ttft", "tpot", "length", "refusals", "golden")
"""The gates that are tests. They share the probability of a false alarm."""


class _Tests(msgspec.Struct, kw_only=True):
    """One test a gate, of the samples since one step began."""

    errors: ErrorRateTest
    ttft: DifferenceTest
    tpot: DifferenceTest
    longer: DifferenceTest
    shorter: DifferenceTest
    refusals: SignTest
    golden: SignTest

    def log_evidence(self, gate: str) -> float:
        match gate:
            case "length":
                return log_mean([self.longer.log_evidence, self.shorter.log_evidence])
            case "refusals":
                return self.refusals.log_evidence_either_way
        test: ErrorRateTest | DifferenceTest | SignTest = getattr(self, gate)
        return test.log_evidence


class Gates(msgspec.Struct, kw_only=True):
    """All tests of one rollout, and the first failure."""

    config: str
    """JSON of the `RolloutConfig`."""
    begun: list[_Tests] = []
    failure: str = ""
    """The reason why the version failed; empty: it has not. It stays, whatever comes later."""
    compared: int = 0
    """Answers that were compared with the stable version's token by token."""
    questions: list[str] = []
    """Golden prompts that are counted: each counts once."""

    @classmethod
    def of(cls, config: RolloutConfig) -> Gates:
        """The gates of a rollout that begins; call `begin_step` for its first step."""
        return cls(config=config.model_dump_json())

    def begin_step(self) -> None:
        """Begin tests of a step, in which the version may become worse: see `log_evidence_since`."""
        config = self._config
        slowdown, longer = math.log1p(config.tolerated_slowdown), math.log1p(config.tolerated_length_change)
        self.begun.append(
            _Tests(
                errors=ErrorRateTest(
                    tolerated=config.tolerated_error_rate, unacceptable=config.unacceptable_error_rate
                ),
                ttft=DifferenceTest(tolerance=slowdown),
                tpot=DifferenceTest(tolerance=slowdown),
                longer=DifferenceTest(tolerance=longer),
                shorter=DifferenceTest(tolerance=longer),
                refusals=SignTest(),
                golden=SignTest(),
            )
        )

    def add(self, outcome: RequestOutcome) -> None:
        """Count a request that the new version had, as itself or as a copy."""
        for tests in self.begun:
            tests.errors.add(outcome.failed)
        self._judge("errors")

    def compare(self, stable: RequestOutcome, candidate: RequestOutcome) -> None:
        """Count a pair: the same request answered by both, or two that are alike."""
        if stable.failed or candidate.failed:
            return
        for tests in self.begun:
            if stable.ttft_s is not None and candidate.ttft_s is not None:
                tests.ttft.add(_log_ratio(candidate.ttft_s, stable.ttft_s, _LATENCY_FLOOR_S))
            if stable.tpot_s is not None and candidate.tpot_s is not None:
                tests.tpot.add(_log_ratio(candidate.tpot_s, stable.tpot_s, _LATENCY_FLOOR_S))
            length = _log_ratio(candidate.completion_tokens, stable.completion_tokens, 1.0)
            tests.longer.add(length)
            tests.shorter.add(-length)
            tests.refusals.add(stable=stable.refusal, candidate=candidate.refusal)
        for gate in ("ttft", "tpot", "length", "refusals"):
            self._judge(gate)

    def compare_tokens(self, request_id: str, equal: bool) -> None:
        """Count an answer of the new version that has, or has not, the tokens of the stable version's."""
        self.compared += 1
        if self._config.identical and not equal:
            self._fail(f"tokens: the answer to {request_id} differs, and the weights are the same")

    def add_golden(self, question: str, stable_right: bool, candidate_right: bool) -> None:
        """Count a golden prompt that both have answered."""
        if question in self.questions:
            return
        self.questions.append(question)
        for tests in self.begun:
            tests.golden.add(stable=not stable_right, candidate=not candidate_right)
        self._judge("golden")

    def evidence(self) -> dict[str, float]:
        """By gate, the logarithm of the evidence over what fails it: 0 and more fails."""
        return {gate: self._log_evidence(gate) - self._needed for gate in GATES}

    def describe(self, gate: str) -> str:
        if not self.begun:
            return "nothing was seen yet"
        tests = self.begun[0]
        match gate:
            case "errors":
                return f"{tests.errors.failures} of {tests.errors.trials} requests failed"
            case "refusals":
                return f"{tests.refusals.mean:+.1%} more of the answers are refusals, of {tests.refusals.count} pairs"
            case "golden":
                return f"{tests.golden.mean:+.1%} more of the golden prompts are wrong, of {tests.golden.count}"
        test: DifferenceTest = tests.longer if gate == "length" else getattr(tests, gate)
        low = max(-1.0, math.expm1(test.lower_bound(math.exp(-self._needed))))
        more = "longer" if gate == "length" else "slower"
        return f"{math.expm1(test.mean):+.1%} {more} (at least {low:+.1%}), of {test.count} pairs"

    @property
    def _config(self) -> RolloutConfig:
        return read_config(self.config)

    @property
    def _needed(self) -> float:
        return math.log(len(GATES) / self._config.false_alarm)

    def _log_evidence(self, gate: str) -> float:
        if not self.begun:
            return 0.0
        if gate == "golden":  # answered once: it does not become worse in the middle
            return self.begun[0].golden.log_evidence
        return log_evidence_since((tests.log_evidence(gate) for tests in self.begun), len(self._config.steps) + 1)

    def _judge(self, gate: str) -> None:
        if self.begun and self._log_evidence(gate) >= self._needed:
            self._fail(f"{gate}: {self.describe(gate)}")

    def _fail(self, reason: str) -> None:
        self.failure = self.failure or reason


@lru_cache(maxsize=64)
def read_config(json: str) -> RolloutConfig:
    """The configuration of a rollout. Needed with each request, so parsed once."""
    return RolloutConfig.model_validate_json(json)


def _log_ratio(candidate: float, stable: float, floor: float) -> float:
    ratio = math.log((candidate + floor) / (stable + floor))
    return max(-_LARGEST, min(ratio, _LARGEST))
