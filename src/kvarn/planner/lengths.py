"""Lengths of prompts and answers as equally likely values, and what queues and steps need of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

from kvarn.admission.predictor import Mix
from kvarn.costs.replica_model import Distribution
from kvarn.costs.step_times import pairs
from kvarn.planner.request import TrafficRequest

_VALUES = 33
"""Equally likely values that stand for a distribution: the last one is its 98.5th percentile."""


@dataclass(frozen=True)
class Lengths:
    """Equally likely numbers of tokens, ascending."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, given: float | tuple[float, ...], variation: float) -> Lengths:
        """Lengths by their quantiles, or by their mean and coefficient of variation (log-normal)."""
        probabilities = [(index + 0.5) / _VALUES for index in range(_VALUES)]
        if isinstance(given, tuple):
            quantiles = Distribution(given)
            return cls(tuple(quantiles.at(each) for each in probabilities))
        if variation == 0:
            return cls((given,))
        sigma = math.sqrt(math.log1p(variation * variation))
        drawn = [math.exp(sigma * NormalDist().inv_cdf(each)) for each in probabilities]
        return cls(tuple(max(1.0, given * each * len(drawn) / sum(drawn)) for each in drawn))

    @cached_property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @cached_property
    def square(self) -> float:
        return sum(each * each for each in self.values) / len(self.values)

    @property
    def longest(self) -> float:
        return self.values[-1]


@dataclass(frozen=True)
class Workload:
    """Requests as an engine sees them, when a part of each prompt is found in its cache."""

    prompt: Lengths
    output: Lengths
    cached: float = 0.0
    """Part of the prompts' tokens."""

    @classmethod
    def of(cls, traffic: TrafficRequest, cached: float) -> Workload:
        variation = traffic.length_variation
        prompt, output = Lengths.of(traffic.input_tokens, variation), Lengths.of(traffic.output_tokens, variation)
        return cls(prompt, output, cached)

    @cached_property
    def computed(self) -> tuple[float, ...]:
        """Tokens of prompts to compute; equally likely."""
        return tuple(max(1.0, each * (1 - self.cached)) for each in self.prompt.values)

    @cached_property
    def pairs(self) -> tuple[float, ...]:
        """(query, key) pairs of those prompts."""
        return tuple(pairs(whole - new, new) for whole, new in zip(self.prompt.values, self.computed, strict=True))

    @cached_property
    def mix(self) -> Mix:
        """The average request."""
        return Mix(
            prompt_tokens=sum(self.computed) / len(self.computed),
            prompt_pairs=sum(self.pairs) / len(self.pairs),
            output_tokens=self.output.mean,
            cost=0.0,
        )

    @cached_property
    def context(self) -> float:
        """Tokens of a sequence that decodes, averaged over time: long answers are there for longer."""
        return self.prompt.mean + self.output.square / (2 * self.output.mean)

    @property
    def longest(self) -> float:
        """Tokens of the longest request that is planned for."""
        return self.prompt.longest + self.output.longest
