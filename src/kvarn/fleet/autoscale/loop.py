"""The loop of the autoscalers: it reads arriving work, held requests and the engines' statistics, look after look."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry

from kvarn.config.model import ModelConfig
from kvarn.config.schema import KvarnConfig
from kvarn.fleet.autoscale.counts import LOOK_S, AutoscaledCounts, ModelLoad
from kvarn.jobs.periodic import Periodic
from kvarn.observe.arrivals import HELD, OUTPUT_TOKENS, PROMPT_TOKENS, REQUESTS
from kvarn.replica.client.protocol import ReplicaClient


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


class Autoscaling(AutoscaledCounts):
    """The autoscalers of the models that have `autoscale`. Runs in the main process; `metrics` gives the counts of all
    gateway processes."""

    def __init__(
        self,
        config: KvarnConfig,
        models: Callable[[], Sequence[ScaledModel]],
        metrics: Callable[[], Awaitable[CollectorRegistry]],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(config, clock)
        self.golden_prompts: Callable[[str], int] = lambda replica: 0
        """Golden prompts that a replica answers now: they are no use of its model."""
        self._models = models
        self._metrics = metrics
        self._looks = Periodic("looks of the autoscaler", self.look, LOOK_S)
        self.start, self.stop, self.wake = self._looks.start, self._looks.stop, self._looks.wake

    async def look(self) -> None:
        if not self.scaled:
            return
        registry = await self._metrics()
        scaled = [model for model in self._models() if model.config.autoscale is not None]
        self.take([self._load_of(model, registry) for model in scaled if model.name in self.scaled])

    def _load_of(self, model: ScaledModel, registry: CollectorRegistry) -> ModelLoad:
        labels = {"model": model.name}
        requests, prompts, outputs = (
            registry.get_sample_value(f"{metric}_total", labels) or 0.0
            for metric in (REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS)
        )
        versions = [each for each in model.all_versions if not each.held_back] or model.all_versions
        by_name = {key: client for each in versions for key, client in each.replicas.items()}
        times = (client.stats.step_times for client in model.replicas.values())
        return ModelLoad(
            model.name,
            model.config,
            requests,
            prompts,
            outputs,
            held=registry.get_sample_value(HELD, labels) or 0.0,
            waiting=[client.stats.waiting for client in by_name.values()],
            running=sum(max(0, each.stats.running - self.golden_prompts(key)) for key, each in by_name.items()),
            step_times=next((each for each in times if each is not None), None),
        )
