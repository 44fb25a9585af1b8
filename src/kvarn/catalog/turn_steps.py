"""Steps of a turn that is over, from the engine that had it."""

from __future__ import annotations

import asyncio

from kvarn.catalog.model_table import ModelTable
from kvarn.observe.traces.traced import TracedTurn
from kvarn.wire.questions import AskTurnSteps
from kvarn.wire.step_records import TurnSteps

_PROMPTS, _MOVES = 4, 2
"""Prompts of a turn, and failovers, whose steps are asked for at most."""


async def steps_of(models: ModelTable, turn: TracedTurn) -> dict[str, TurnSteps]:
    """Steps of a turn by the engine's ids: it has one for each of several prompts (`-0`), and another after each
    failover (`~1`). Empty: its replica is not here any more, or has forgotten them."""
    served = models.named(turn.model)
    replica = None if served is None else served.replicas.get(turn.replica)
    if replica is None:
        return {}
    if (own := await replica.ask(AskTurnSteps(turn.id))) is not None:
        return {turn.id: own}
    others = [f"{turn.id}-{number}" for number in range(_PROMPTS)]
    others += [f"{turn.id}~{move}" for move in range(1, _MOVES + 1)]
    told = await asyncio.gather(*[replica.ask(AskTurnSteps(each)) for each in others])
    return {name: steps for name, steps in zip(others, told, strict=True) if steps is not None}
