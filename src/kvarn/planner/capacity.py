"""The rate that replicas serve within latency targets, in closed form.

Steps, prompts beside decodes and their sharing of a step are the admission's (`Predictor`). Queues are textbook ones:

* Sequences that decode at once: Little's law. Their number strays as a Poisson variable's would, so there is room for
  `mean + z * sqrt(mean)` of them over all replicas (square-root staffing, Halfin and Whitt 1981).
* An answer's time per token strays with that number, and with the prompts that come while it is written: a compound
  Poisson sum, which matters the more the shorter the answer is.
* Prompts wait in one queue for all replicas: M/G/c with the waiting probability and mean of Sakasegawa (1977), for one
  replica Pollaczek's and Khinchine's; those that wait do so for an exponential time (Kingman 1962).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

from kvarn.admission.predictor import Predictor
from kvarn.config.engine import EngineConfig
from kvarn.costs.prefill_speed import PrefillSpeed, longest_step_s
from kvarn.costs.step_times import FEW_ROWS, StepTimes
from kvarn.planner.lengths import Workload
from kvarn.planner.request import SloRequest

_HALVINGS = 24
_MOST_RPS = 1e9


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Replicas at a rate, and whether they meet the targets there."""

    rows: float
    """Sequences that a replica decodes, on average; infinite: more arrives than is ever answered."""
    tpot_s: float
    ttft_s: float
    limit: str
    """The first thing that does not hold; empty: the targets are met."""


@dataclass(frozen=True, slots=True)
class PromptQueue:
    """Times to first token: a prompt's own, and before it no wait or an exponential one."""

    load: float
    """Part of the time that prompts get, which they need; from 1 on the queue grows without end."""
    own_s: tuple[float, ...]
    """Equally likely."""
    idle_s: float
    """Steps under way, and planned ahead, before a prompt that does not wait for others."""
    ahead_s: float
    """A prompt's step that was planned ahead, before one that waits."""
    waiting: float
    """Part of the prompts that wait."""
    mean_wait_s: float
    """Mean wait of those."""

    def share(self, limit_s: float) -> float:
        """Part of the requests with a first token within the limit."""
        met = 0.0
        for each in self.own_s:
            if each + self.idle_s <= limit_s:
                met += 1 - self.waiting
            spare = limit_s - each - self.ahead_s
            if spare >= 0:
                met += self.waiting * (1 - (math.exp(-spare / self.mean_wait_s) if self.mean_wait_s > 0 else 0.0))
        return met / len(self.own_s)

    def quantile(self, percentile: float) -> float:
        """Seconds within which so large a part of the requests has its first token."""
        low, high = 0.0, max(self.own_s) + max(self.idle_s, self.ahead_s)
        while self.share(high) < percentile:
            low, high = high, 2 * high + self.mean_wait_s
        return _narrowed(low, high, lambda limit_s: self.share(limit_s) < percentile)[1]


@dataclass(frozen=True, slots=True)
class TpotSpread:
    """Times per output token: normal around their mean, the wider the shorter the answer, and bounded by the engine."""

    mean_s: float
    load_s: float
    """Standard deviation by the number of sequences that decode at once."""
    prompts_s2: float
    """Variance by the prompts that come during an answer of one token; of longer ones over their length."""
    answers: tuple[float, ...]
    """Tokens of answers; equally likely."""
    longest_s: float
    """Longest step that the engine makes."""

    def share(self, limit_s: float) -> float:
        """Part of the answers within the limit."""
        if limit_s >= self.longest_s:
            return 1.0
        total = 0.0
        for tokens in self.answers:
            deviation = math.sqrt(2 * (self.load_s * self.load_s + self.prompts_s2 / tokens))
            if deviation == 0:
                total += limit_s >= self.mean_s
            else:
                total += (1 + math.erf((limit_s - self.mean_s) / deviation)) / 2
        return total / len(self.answers)

    def quantile(self, percentile: float) -> float:
        """Seconds within which so large a part of the answers has its tokens, on average of an answer."""
        longest_s = max(self.longest_s, self.mean_s)
        return _narrowed(0.0, longest_s, lambda limit_s: self.share(limit_s) < percentile)[1]


@dataclass(frozen=True)
class ReplicaCapacity:
    """One replica of an engine under some traffic."""

    times: StepTimes
    config: EngineConfig
    workload: Workload
    slo: SloRequest
    kv_tokens: float
    burstiness: float = 1.0
    does_prompts: bool = True
    does_answers: bool = True
    steps_ahead: int = 0
    """Steps that are planned while one is computed: a prompt that comes waits for them too."""
    answer_s: float = 0.0
    """Seconds of a request outside of the engine before its first token."""
    transfer_s_per_token: float = 0.0
    """Seconds that a token's keys and values take to another replica."""

    def at(self, rate: float, replicas: int) -> OperatingPoint:
        """Replicas that share requests of this rate."""
        rows = self._rows(rate / replicas)
        if math.isinf(rows):
            return OperatingPoint(rows, math.inf, math.inf, "steps")
        tpot_s = self._spread(rate, replicas, rows).quantile(self.slo.percentile) if self.does_answers else 0.0
        queue = self._queue(rate, replicas, rows)
        ttft_s = queue.quantile(self.slo.percentile) if queue.load < 1 else math.inf
        return OperatingPoint(rows, tpot_s, ttft_s, self.limit(rate, replicas))

    def limit(self, rate: float, replicas: int) -> str:
        """The first thing that does not hold at a rate; empty: the targets are met."""
        rows = self._rows(rate / replicas)
        if math.isinf(rows):
            return "steps"
        high_rows = self._high_rows(rows, replicas)
        if self.does_answers and high_rows > self.most_rows:
            return "max_num_seqs" if self.config.max_num_seqs <= self.most_rows else "cache"
        if self.does_answers and self._spread(rate, replicas, rows).share(self.slo.tpot_s) < self.slo.percentile:
            return "tpot"
        queue = self._queue(rate, replicas, rows)
        if queue.load >= 1:
            return "prompts"
        return "" if queue.share(self.slo.ttft_s) >= self.slo.percentile else "ttft"

    def meets(self, rate: float, replicas: int) -> bool:
        return not self.limit(rate, replicas)

    def capacity(self, replicas: int) -> float:
        """Largest rate of so many replicas; 0: even a single request misses a target."""
        return _largest(lambda rate: self.meets(rate, replicas), 1e-6 * replicas)

    @cached_property
    def saturation(self) -> float:
        """Rate of one replica at which its queue grows without end, whatever the targets."""
        return _largest(self._is_stable, 1e-6)

    def _is_stable(self, rate: float) -> bool:
        rows = self._rows(rate)
        return rows <= self.most_rows and self._queue(rate, 1, rows).load < 1

    @cached_property
    def most_rows(self) -> float:
        """Sequences that the engine takes at once: by its configuration, and by what its cache holds."""
        return max(1.0, min(self.config.max_num_seqs, self.kv_tokens / self.workload.context))

    @cached_property
    def _predictor(self) -> Predictor:
        return Predictor(self.times, self.config, self.slo.tpot_s)

    def _rows(self, rate: float) -> float:
        """Little's law: rows = rate x output x step, where a step grows with the rows and the prompts beside them."""
        if not self.does_answers:
            return 0.0
        work, times = self.workload, self.times
        prompts_s = times.prompt_s(work.mix.prompt_tokens, work.mix.prompt_pairs) if self.does_prompts else 0.0
        per_row_s = times.decode_row_s + work.context * times.decode_token_s + prompts_s / work.output.mean
        tokens = rate * work.output.mean
        rows = _balanced(tokens, times.fixed_s, per_row_s)
        if rows <= FEW_ROWS or times.further_row_s == 0:
            return rows
        return _balanced(tokens, times.fixed_s - FEW_ROWS * times.further_row_s, per_row_s + times.further_row_s)

    def _tpot_s(self, rows: float) -> float:
        predictor, context = self._predictor, rows * self.workload.context
        if not self.does_prompts:
            return predictor.decode_s(rows, context)
        return predictor.tpot_s(rows, context, self.workload.mix)

    def _computing(self, beside: PrefillSpeed, rows: float) -> list[float]:
        """Seconds that each prompt takes: beside decodes, or alone where none happens to be there (Poisson)."""
        alone = PrefillSpeed.beside(self.times.fixed_s, 0, 0.0, self.config)
        idle, found = math.exp(-rows), []
        for tokens, pairs in zip(self.workload.computed, self.workload.pairs, strict=True):
            work_s = self.times.prompt_s(tokens, pairs)
            found.append(idle * alone.seconds(tokens, work_s) + (1 - idle) * beside.seconds(tokens, work_s))
        return found

    def _spread(self, rate: float, replicas: int, rows: float) -> TpotSpread:
        """Times per output token where so many rows decode on average."""
        work, busy = self.workload, max(1.0, rows)
        mean_s = self._tpot_s(busy)
        more = math.sqrt(rows * max(1.0, self.burstiness) / replicas)
        prompts_s2 = 0.0
        if self.does_prompts:
            squares = (self.times.prompt_s(*each) ** 2 for each in zip(work.computed, work.pairs, strict=True))
            prompts_s2 = rate / replicas * mean_s * sum(squares) / len(work.computed)
        high = busy + more
        decode_s = self.times.decode_s(high, high * work.context)
        return TpotSpread(
            mean_s=mean_s,
            load_s=self._tpot_s(high) - mean_s,
            prompts_s2=prompts_s2,
            answers=work.output.values,
            longest_s=longest_step_s(self.config, decode_s) if self.does_prompts else self._tpot_s(high) * 2,
        )

    def _high_rows(self, rows: float, replicas: int) -> float:
        z = NormalDist().inv_cdf(self.slo.percentile)
        return rows + z * math.sqrt(rows * max(1.0, self.burstiness) / replicas)

    def _queue(self, rate: float, replicas: int, rows: float) -> PromptQueue:
        """The queue of prompts: each one's own time beside so many decodes, and the wait before it."""
        if not self.does_prompts:
            return PromptQueue(0.0, (0.0,), 0.0, 0.0, 0.0, 0.0)
        predictor, work = self._predictor, self.workload
        context = rows * work.context
        prefill = predictor.prefill(predictor.token_s(work.mix), rows, context)
        speed = prefill.tokens_per_s(predictor.token_s(work.mix))
        under_way = min(1.0, rows) * (0.5 + self.steps_ahead) * predictor.decode_s(rows, context)
        computing = self._computing(prefill, rows)
        own = tuple(
            self.answer_s + seconds + whole * self.transfer_s_per_token
            for whole, seconds in zip(work.prompt.values, computing, strict=True)
        )
        load = rate / replicas * work.mix.prompt_tokens / speed
        if load >= 1:
            return PromptQueue(load, own, 0.0, 0.0, 1.0, math.inf)
        service_s = sum(computing) / len(computing)
        variation = sum(each * each for each in computing) / len(computing) / (service_s * service_s) - 1
        busy = min(1.0, rate / replicas * service_s)  # prompts that share a step keep it busy together
        return PromptQueue(
            load,
            own,
            idle_s=under_way,
            ahead_s=max(under_way, self.steps_ahead * service_s),
            waiting=busy ** (math.sqrt(2 * (replicas + 1)) - 1),
            mean_wait_s=(self.burstiness + variation) / 2 * service_s / (replicas * (1 - load)),
        )


def _balanced(tokens_per_s: float, fixed_s: float, per_row_s: float) -> float:
    """Rows whose steps of `fixed_s + rows * per_row_s` write so many tokens a second; infinite: none do."""
    spare = 1 - tokens_per_s * per_row_s
    return tokens_per_s * fixed_s / spare if spare > 0 else math.inf


def _largest(holds: Callable[[float], bool], least: float) -> float:
    """The largest rate at which something holds that holds at all smaller ones; 0: it does not at the least."""
    if not holds(least):
        return 0.0
    low, high = least, 2 * least
    while holds(high) and high < _MOST_RPS:
        low, high = high, 4 * high
    return _narrowed(low, high, holds)[0]


def _narrowed(low: float, high: float, holds: Callable[[float], bool]) -> tuple[float, float]:
    """The place between two numbers up to which something holds, from both sides."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high
