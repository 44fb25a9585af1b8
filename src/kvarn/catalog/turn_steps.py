"""Steps of a turn that is over, from the engine that had it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from kvarn.catalog.model_table import ModelTable
from kvarn.observe.traces.traced import TracedTurn
from kvarn.wire.step_records import TurnSteps


@runtime_checkable
class TellsSteps(Protocol):
    """A replica that remembers the steps of its turns."""

    async def turn_steps(self, request_id: str) -> TurnSteps | None:
        """Steps of a turn, by the engine's id of it; None: forgotten, or the engine is gone."""


async def steps_of(models: ModelTable, turn: TracedTurn) -> TurnSteps | None:
    """Steps of a turn; None: its replica is not here any more, or has forgotten them."""
    served = models.named(turn.model)
    replica = None if served is None else served.replicas.get(turn.replica)
    return await replica.turn_steps(turn.id) if isinstance(replica, TellsSteps) else None
