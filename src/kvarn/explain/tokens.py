"""Cells of the token ribbon: when each token of the first choice came, and why then."""

from __future__ import annotations

from collections.abc import Sequence

from kvarn.explain.explanation import TokenCause, TokenCell
from kvarn.explain.work import OwnStep

_SHARED = 0.05
"""Share of a step's time that others' prompts take, from which on they are its cause."""


def token_cells(own: Sequence[OwnStep], accepted_s: float, stops: Sequence[float], *, moved: bool) -> list[TokenCell]:
    """The tokens of these steps. `accepted_s`: when the engine accepted the turn, since the request's headers came;
    `stops`: when it was preempted. `moved`: it goes on after a failover. The first cell is as wide as the step that
    gave it."""
    cells: list[TokenCell] = []
    before_s, is_first = 0.0, True
    for step in own:
        at_s = accepted_s + step.end_us / 1e6
        for place in range(step.tokens):
            seconds = step.record.us / 1e6 if is_first else at_s - before_s
            if place:
                cause = TokenCause.ACCEPTED
            elif is_first and moved:
                cause = TokenCause.FAILOVER
            elif not is_first and any(before_s <= stop <= at_s for stop in stops):
                cause = TokenCause.PREEMPTED
            else:
                is_shared = step.prompts_s > _SHARED * step.record.us / 1e6
                alone = TokenCause.PROMPT if step.is_prompt else TokenCause.OWN
                cause = TokenCause.SHARED if is_shared else alone
            cells.append(TokenCell(at_s, max(0.0, seconds), cause))
            before_s, is_first = at_s, False
    return cells
