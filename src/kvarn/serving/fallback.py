"""Another model answers where the one that was asked for would be too late."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from kvarn.serving.context import ServingContext
from kvarn.serving.models import ReadyModel
from kvarn.serving.pipeline import DegradedError
from kvarn.serving.record import RequestRecord

RunT = TypeVar("RunT")


async def start_on_model(
    serving: ServingContext, record: RequestRecord, name: str, start: Callable[[ReadyModel], Awaitable[RunT]]
) -> RunT:
    """Start a generation on the model of that name, or on the one that admission puts in its place.

    `start` renders, tokenizes and begins the work on the model it is given; it is called again with another.

    Raises:
        ApiError: There is no such model, it is not ready, or `start` cannot have its way.
    """
    model = serving.ready_model(record, name, "generate")
    try:
        return await start(model)
    except DegradedError as degraded:
        record.degraded_from = name
        return await start(serving.ready_model(record, degraded.model, "generate"))
