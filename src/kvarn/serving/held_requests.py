"""Requests for a model that has no replicas wait for the first one, some of them and for a while."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from kvarn.observe.arrivals import ArrivalMetrics
from kvarn.serving.models import ServedModel
from kvarn.wire.openai.errors import unavailable

_LOOK_EVERY_S = 0.05


class HeldRequests:
    """Holds them, model by model. That they wait has the autoscaler start a replica.

    Args:
        metrics: Where they are counted.
        on_held: Called when one begins to wait.
    """

    def __init__(self, metrics: ArrivalMetrics, on_held: Callable[[], None] = lambda: None) -> None:
        self._metrics = metrics
        self._on_held = on_held
        self._held = Counter[str]()

    async def until_ready(self, find: Callable[[], ServedModel]) -> None:
        """Wait until a model whose replicas come and go with the work has one that is ready. `find` finds the version
        that would answer now.

        Raises:
            ApiError: 503 with Retry-After: too many wait, or none was ready in time.
        """
        model = find()
        config = model.config.autoscale
        if config is None or config.min_replicas or model.ready or model.load_error is not None:
            return
        if model.held_back:  # another version answers
            return
        if self._held[model.name] >= config.max_held:
            why = f"{config.max_held} requests wait already for the first replica of {model.name!r}."
            raise unavailable(f"{why} Try again in {config.start_s:g} s.", "model_not_ready", config.start_s)
        self._hold(model.name, 1)
        self._on_held()
        try:
            async with asyncio.timeout(config.max_hold_s):
                while not find().ready:  # noqa: ASYNC110  replicas have no event that all can wait for
                    await asyncio.sleep(_LOOK_EVERY_S)
        except TimeoutError:
            why = f"The model {model.name!r} had no replica ready within {config.max_hold_s:g} s."
            raise unavailable(f"{why} Try again in {config.start_s:g} s.", "model_not_ready", config.start_s) from None
        finally:
            self._hold(model.name, -1)

    def _hold(self, model: str, change: int) -> None:
        self._held[model] += change
        self._metrics.held.labels(model).set(self._held[model])
