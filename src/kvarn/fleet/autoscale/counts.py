"""The autoscalers of all models, without I/O: loads go in, look after look, and replica counts come out."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kvarn.admission.predictor import Predictor
from kvarn.config.model import ModelConfig
from kvarn.config.schema import KvarnConfig
from kvarn.costs.step_times import StepTimes
from kvarn.fleet.autoscale.autoscaler import Autoscaler, LoadSample, ScalingDecision
from kvarn.fleet.desired import Desired, ReplicaCounts

LOOK_S = 5.0
"""Seconds between two looks."""
_KEPT_DECISIONS = 256
_FIRST_WORK_S = 1.0
"""Work of a request before an engine has reported the time of its steps."""

HALF_LIFE_S = 3600.0
LEAST = 0.5
"""Requests, so counted, below which a model has no process: a single request counts for an hour."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """Load of one model at a look. A version that is rolled out is left out: it runs beside what is needed."""

    name: str
    config: ModelConfig
    requests: float
    """Arrived since the server began, as are the two that follow."""
    prompt_tokens: float
    output_tokens: float
    held: float
    """Requests that wait for the first replica."""
    waiting: Sequence[int]
    """Requests that wait in each replica, ready or starting."""
    running: int
    step_times: StepTimes | None
    """A replica's own report; None: none has told yet."""


class Popularity:
    """Recent requests of each model, each of which counts less the longer ago it was: by half after `HALF_LIFE_S`."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, float]] = {}

    def add(self, model: str, requests: float, now: float) -> None:
        self._counts[model] = self.of(model, now) + requests, now

    def of(self, model: str, now: float) -> float:
        count, at = self._counts.get(model, (0.0, now))
        return count * math.pow(0.5, (now - at) / HALF_LIFE_S)


def most_popular(popularity: Popularity, idle: Collection[str], size: int, now: float) -> list[str]:
    """The models without replicas that have one of the processes of a warm pool each, the most popular first."""
    ranked = sorted(idle, key=lambda model: (-popularity.of(model, now), model))
    return [model for model in ranked if popularity.of(model, now) >= LEAST][:size]


class AutoscaledCounts(ReplicaCounts):
    """Replica counts that follow the load, for the models that have `autoscale`; `look` is called each `LOOK_S`."""

    def __init__(self, config: KvarnConfig, clock: Callable[[], float]) -> None:
        self.decisions: deque[tuple[str, ScalingDecision]] = deque(maxlen=_KEPT_DECISIONS)
        """The latest changes and new reasons, with their model, oldest first."""
        self.on_changed: Callable[[], None] = lambda: None  # called when the count of a model changes
        self.on_needed: Callable[[str, float | None], None] = lambda model, replicas: None
        """Called at each look with the replicas that a model's work needs, be there more or fewer; None: it is looked
        at no more."""
        self._config = config
        self._clock = clock
        self._scalers: dict[str, Autoscaler] = {}
        self._counts: dict[str, int] = {}
        """By model, once the controller has asked for it."""
        self._seen: dict[str, tuple[float, float, float]] = {}
        """Requests, prompt tokens and output tokens at the last look, by model."""
        self._popularity = Popularity()
        self._pool: list[str] = []  # models with a process in the warm pool, the most popular first
        self._work_s: dict[str, float] = {}  # average work of a request, by model

    def count(self, desired: Desired, running: int) -> int:
        """A number that was set by hand goes before; what runs at first stays until its work is known."""
        scale, name = desired.model.autoscale, desired.model.name
        if scale is None or desired.replicas is not None:
            self._forget(name)
            return desired.count
        return self._counts.setdefault(name, min(max(desired.count, running), scale.max_replicas))

    def forget(self) -> None:
        for name in list(self._counts):
            self._forget(name)
        self._pool.clear()

    def _forget(self, name: str) -> None:
        self._counts.pop(name, None)
        if self._scalers.pop(name, None) is not None:
            self.on_needed(name, None)

    def pool(self, model: str) -> int:
        return int(model in self._pool)

    @property
    def scaled(self) -> frozenset[str]:
        """Names of the models to look at."""
        return frozenset(self._counts)

    def take(self, loads: Sequence[ModelLoad]) -> None:
        """Decide for the models of `scaled`, by their loads now."""
        for load in loads:
            self._decide(load)
        self._share_pool([load.name for load in loads])

    def _decide(self, load: ModelLoad) -> None:
        config, name, now = load.config.autoscale, load.name, self._clock()
        assert config is not None
        before = self._seen.get(name, (load.requests, load.prompt_tokens, load.output_tokens))
        self._seen[name] = load.requests, load.prompt_tokens, load.output_tokens
        arrived = load.requests - before[0]
        self._popularity.add(name, arrived, now)
        if arrived:
            prompt, output = (load.prompt_tokens - before[1]) / arrived, (load.output_tokens - before[2]) / arrived
            self._work_s[name] = self._work(load, prompt, output)
        work_s = self._work_s.get(name, _FIRST_WORK_S)
        sample = LoadSample(
            now,
            arrived * work_s,
            (load.held + sum(load.waiting)) * work_s,
            len(load.waiting),
            min((waiting * work_s for waiting in load.waiting), default=None),
            self._config.slo_of(load.config).ttft_target_s,
            running=load.running,
        )
        scaler = self._scalers.setdefault(name, Autoscaler(config, self._counts[name]))
        scaler.config = config
        decision = scaler.decide(sample)
        self.on_needed(name, decision.needed)
        if self._is_news(name, decision):
            self.decisions.append((name, decision))
        if self._counts[name] != decision.replicas:
            _log.info(
                "number of replicas changed",
                extra={"model": name, "replicas": decision.replicas, "reason": decision.reason},
            )
            self._counts[name] = decision.replicas
            self.on_changed()

    def _share_pool(self, scaled: list[str]) -> None:
        """Choose the models without replicas that get a process in the warm pool."""
        now, size = self._clock(), self._config.fleet.warm_pool
        idle = [name for name in scaled if self._counts.get(name) == 0]
        chosen = most_popular(self._popularity, idle, size, now)
        if chosen == self._pool:
            return
        for name in idle if size else ():
            if (name in chosen) != (name in self._pool):
                waits = "waits" if name in chosen else "waits no longer"
                reason = f"a process {waits}: {self._popularity.of(name, now):.1f} requests lately, {size} may wait"
                _log.info("warm pool changed", extra={"model": name, "reason": reason})
                self.decisions.append((name, ScalingDecision(now, 0, reason)))
        self._pool = chosen
        self.on_changed()

    def _is_news(self, name: str, decision: ScalingDecision) -> bool:
        latest = next((each for model, each in reversed(self.decisions) if model == name), None)
        return latest is None or latest.replicas != decision.replicas

    def _work(self, load: ModelLoad, prompt: float, output: float) -> float:
        """Seconds of an engine that a request takes: its prompt, and its share of steps as full as the target for the
        time per output token allows."""
        if load.step_times is None:
            return self._work_s.get(load.name, _FIRST_WORK_S)
        engine = load.config.engine
        predictor, context = Predictor(load.step_times, engine), prompt + output / 2
        target_s = self._config.slo_of(load.config).tpot_target_s
        rows = 1
        while rows < engine.max_num_seqs and predictor.decode_s(2 * rows, 2 * rows * context) <= target_s:
            rows *= 2
        return predictor.prompt_s(prompt) + output * predictor.decode_s(rows, rows * context) / rows
