"""Requests for a model that has no replica yet wait for the first one, some of them and for a while."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.models import ServedModel
from kvarn.config.model import ModelConfig
from kvarn.observe.arrivals import ArrivalMetrics
from kvarn.replica.client.protocol import ReplicaState
from kvarn.wire.openai.errors import unavailable


class Hold(NamedTuple):
    """Rules by which requests for a model without a ready replica wait."""

    max_s: float
    max_requests: int | None = None
    """None: as many as there may be connections."""
    retry_after_s: float | None = None

    def is_full(self, held: int) -> bool:
        return self.max_requests is not None and held >= self.max_requests


def hold_of(config: ModelConfig, *, is_expected: bool = False) -> Hold | None:
    """The rules of a model; None: its requests do not wait. `is_expected`: a replica of it starts, though it is not
    scaled down to none while nobody asks for it."""
    scale = config.autoscale
    if scale is not None and not scale.min_replicas:
        return Hold(scale.max_hold_s, scale.max_held, scale.start_s)
    return Hold(config.failover.max_wait_s) if is_expected else None


class HeldRequests:
    """Holds them, model by model; with replicas that follow the work, a held request has the autoscaler start one.
    `engines_outlive_gateways`: this gateway may stand by until it takes over the engines of another, and requests wait
    for that."""

    def __init__(self, metrics: ArrivalMetrics, models: ModelTable, *, engines_outlive_gateways: bool = False) -> None:
        self.on_held: Callable[[], None] = lambda: None  # called when one begins to wait
        self._metrics = metrics
        self._models = models
        self._engines_outlive_gateways = engines_outlive_gateways
        self._held = Counter[str]()

    @property
    def is_standby(self) -> bool:
        """Whether another gateway has the engines, or none has yet: no model has a replica, though one should have."""
        versions = [each for model in self._models for each in model.all_versions if each.config.external is None]
        if not self._engines_outlive_gateways or any(each.replicas for each in versions):
            return False
        return not all(map(may_have_no_replica, versions))

    async def until_ready(self, find: Callable[[], tuple[ServedModel, str]]) -> tuple[ServedModel, str]:
        """Wait until a model has a replica that is ready, where one is expected. `find` finds the version and the
        adapter that would answer now; returns what it found last. Raises `ApiError` 503: too many wait, or none was
        ready in time."""
        found = model, _ = find()
        if model.ready or model.load_error is not None or (hold := self._hold_of(model)) is None:
            return found
        name, again = (
            model.name,
            "Try again." if hold.retry_after_s is None else f"Try again in {hold.retry_after_s:g} s.",
        )
        if hold.is_full(self._held[name]):
            why = f"{hold.max_requests} requests wait already for the first replica of {name!r}."
            raise unavailable(f"{why} {again}", "model_not_ready", hold.retry_after_s)
        self._count(name, 1)
        self.on_held()
        try:
            async with asyncio.timeout(hold.max_s):
                while not model.ready and model.load_error is None:
                    await model.changed()
                    found = model, _ = find()
        except TimeoutError:
            why = f"The model {name!r} had no replica ready within {hold.max_s:g} s."
            raise unavailable(f"{why} {again}", "model_not_ready", hold.retry_after_s) from None
        finally:
            self._count(name, -1)
        return found

    def _hold_of(self, model: ServedModel) -> Hold | None:
        if model.held_back:  # another version answers
            return None
        starts = self._engines_outlive_gateways and bool(model.replicas) and model.state is ReplicaState.STARTING
        return hold_of(model.config, is_expected=model.config.external is None and (starts or self.is_standby))

    def _count(self, model: str, change: int) -> None:
        self._held[model] += change
        self._metrics.held.labels(model).set(self._held[model])


def may_have_no_replica(model: ServedModel) -> bool:
    """Whether a model is scaled down to none while nobody asks for it."""
    return model.config.autoscale is not None and not model.config.autoscale.min_replicas
