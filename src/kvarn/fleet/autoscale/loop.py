"""The loop of the autoscalers: samples of arriving work, held requests and engines go in, replica counts come out."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry

from kvarn.admission.predictor import Predictor
from kvarn.config.model import ModelConfig
from kvarn.config.schema import KvarnConfig
from kvarn.fleet.autoscale.autoscaler import Autoscaler, LoadSample, ScalingDecision
from kvarn.fleet.autoscale.popularity import Popularity, most_popular
from kvarn.fleet.desired import Desired, ReplicaCounts
from kvarn.jobs.periodic import Periodic
from kvarn.observe.arrivals import HELD, OUTPUT_TOKENS, PROMPT_TOKENS, REQUESTS
from kvarn.replica.client.protocol import ReplicaClient

LOOK_S = 5.0
_KEPT_DECISIONS = 256
_FIRST_WORK_S = 1.0
"""Work of a request before an engine has reported the time of its steps."""

_log = logging.getLogger(__name__)


class ScaledModel(Protocol):
    """A served model, or a version of one."""

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def held_back(self) -> bool:
        """A version that is rolled out, whose replicas run beside those that the model needs."""
        ...

    @property
    def replicas(self) -> Mapping[str, ReplicaClient]: ...

    @property
    def all_versions(self) -> Sequence[ScaledModel]: ...


class Autoscaling(ReplicaCounts):
    """The autoscalers of the models that have `autoscale`. Runs in the main process; `metrics` gives the counts of all
    gateway processes."""

    def __init__(
        self,
        config: KvarnConfig,
        models: Callable[[], Sequence[ScaledModel]],
        metrics: Callable[[], Awaitable[CollectorRegistry]],
        clock: Callable[[], float],
    ) -> None:
        self.decisions: deque[tuple[str, ScalingDecision]] = deque(maxlen=_KEPT_DECISIONS)
        """The latest changes and new reasons, with their model, oldest first."""
        self._config = config
        self._models = models
        self._metrics = metrics
        self.on_changed: Callable[[], None] = lambda: None  # called when the count of a model changes
        self.golden_prompts: Callable[[str], int] = lambda replica: 0
        """Golden prompts that a replica answers now: they are no use of its model."""
        self.on_needed: Callable[[str, float | None], None] = lambda model, replicas: None
        """Called at each look with the replicas that a model's work needs, be there more or fewer; None: it is looked
        at no more."""
        self._clock = clock
        self._scalers: dict[str, Autoscaler] = {}
        self._counts: dict[str, int] = {}
        """By model, once the controller has asked for it."""
        self._seen: dict[str, tuple[float, float, float]] = {}
        """Requests, prompt tokens and output tokens at the last look, by model."""
        self._popularity = Popularity()
        self._pool: list[str] = []  # models with a process in the warm pool, the most popular first
        self._work_s: dict[str, float] = {}  # average work of a request, by model
        self._looks = Periodic("looks of the autoscaler", self.look, LOOK_S)
        self.start, self.stop, self.wake = self._looks.start, self._looks.stop, self._looks.wake

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

    async def look(self) -> None:
        if not self._counts:
            return
        registry = await self._metrics()
        scaled = [model for model in self._models() if model.config.autoscale is not None]
        scaled = [model for model in scaled if model.name in self._counts]
        for model in scaled:
            self._look_at(model, registry)
        self._share_pool(scaled)

    def _look_at(self, model: ScaledModel, registry: CollectorRegistry) -> None:
        config, name, now = model.config.autoscale, model.name, self._clock()
        assert config is not None
        labels = {"model": name}
        requests, prompts, outputs = (
            registry.get_sample_value(f"{metric}_total", labels) or 0.0
            for metric in (REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS)
        )
        held = registry.get_sample_value(HELD, labels) or 0.0
        before = self._seen.get(name, (requests, prompts, outputs))
        self._seen[name] = requests, prompts, outputs
        arrived = requests - before[0]
        self._popularity.add(name, arrived, now)
        # A version that is rolled out runs beside the replicas that are needed.
        versions = [each for each in model.all_versions if not each.held_back] or model.all_versions
        by_name = {key: client for each in versions for key, client in each.replicas.items()}
        replicas = list(by_name.values())
        if arrived:
            self._work_s[name] = self._work(model, (prompts - before[1]) / arrived, (outputs - before[2]) / arrived)
        work_s = self._work_s.get(name, _FIRST_WORK_S)
        waiting = held + sum(client.stats.waiting for client in replicas)
        slo = self._config.slo_of(model.config)
        sample = LoadSample(
            now,
            arrived * work_s,
            waiting * work_s,
            len(replicas),
            min((client.stats.waiting * work_s for client in replicas), default=None),
            slo.ttft_target_s,
            running=sum(max(0, each.stats.running - self.golden_prompts(key)) for key, each in by_name.items()),
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

    def _share_pool(self, scaled: list[ScaledModel]) -> None:
        """Choose the models without replicas that get a process in the warm pool."""
        now, size = self._clock(), self._config.fleet.warm_pool
        idle = [model.name for model in scaled if self._counts.get(model.name) == 0]
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

    def _work(self, model: ScaledModel, prompt: float, output: float) -> float:
        """Seconds of an engine that a request takes: its prompt, and its share of steps as full as the target for the
        time per output token allows."""
        times = next((c.stats.step_times for c in model.replicas.values() if c.stats.step_times is not None), None)
        if times is None:
            return self._work_s.get(model.name, _FIRST_WORK_S)
        predictor, context = Predictor(times, model.config.engine), prompt + output / 2
        target_s = self._config.slo_of(model.config).tpot_target_s
        rows = 1
        while rows < model.config.engine.max_num_seqs and predictor.decode_s(2 * rows, 2 * rows * context) <= target_s:
            rows *= 2
        return predictor.prompt_s(prompt) + output * predictor.decode_s(rows, rows * context) / rows
