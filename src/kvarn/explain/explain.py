"""Explanation of a request that is over: from its timeline, and the steps of the engines that worked for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvarn.explain.causes import Candidate, causes_of, own_prompt_seconds, own_work_seconds, unexplained_seconds
from kvarn.explain.counterfactuals import counterfactuals_of
from kvarn.explain.explanation import Cause, CauseCode, Explanation, TokenCell
from kvarn.explain.parts import Reading, read
from kvarn.explain.sentence import sentence_of
from kvarn.explain.tokens import token_cells
from kvarn.explain.typical import Typical, compare, seconds_by_part
from kvarn.explain.words import count
from kvarn.observe.traces.traced import TracedRequest
from kvarn.wire.step_records import TurnSteps

_AVOIDABLE = 0.1
"""Share of the total below which nothing avoidable is told ..."""
_LEAST_S = 0.005
"""... nor what is shorter than this."""
_LONG = 0.5
"""Share of the total from which on a request's own prompt is its cause."""


def explain(
    request: TracedRequest,
    steps: Mapping[str, TurnSteps],
    typical: Typical | None = None,
    name_of: Callable[[str], str] = str,
    *,
    replicas: int = 1,
) -> Explanation:
    """Explain where the time of a request went.

    Args:
        request: Is over; its events are in the order in which they were told.
        steps: Steps of its turns, by the engine's ids (`TracedTurn.id`, with `~1` after a failover and `-0`, `-1` for
            several prompts). Without them, what the engine told of each turn is used.
        typical: A typical request of its shape, to stand beside it.
        name_of: Name of a tenant as the reader may see it; empty: it is left out.
        replicas: Replicas that the request could have gone to.
    """
    reading = read(request, steps)
    causes = causes_of(reading, name_of)
    cause = _main_cause(reading, causes)
    return Explanation(
        total_s=reading.total_s,
        sentence=sentence_of(cause, reading.total_s, own_work_seconds(reading)),
        parts=reading.parts,
        cause=cause,
        counterfactuals=counterfactuals_of(reading, causes, replicas),
        tokens=_tokens(reading),
        unexplained_s=unexplained_seconds(reading.parts),
        beside=[] if typical is None else compare(seconds_by_part(reading.parts), typical.parts),
    )


def main_cause(request: TracedRequest, steps: Mapping[str, TurnSteps]) -> Cause:
    """The cause that an explanation would name, without the rest of it."""
    reading = read(request, steps)
    return _main_cause(reading, causes_of(reading, str))


def _main_cause(reading: Reading, causes: Sequence[Candidate]) -> Cause:
    """The largest cause; where all are small, that it was long itself, or that nothing could have been spared."""
    largest = causes[0] if causes else None
    prompt_s = own_prompt_seconds(reading)
    if prompt_s > _LONG * reading.total_s and (largest is None or prompt_s > largest.seconds):
        tokens = sum(
            int(chunk.numbers["tokens"]) for turn in reading.turns for piece in turn.pieces for chunk in piece.chunks
        )
        at_s = next((part.begin_s for part in reading.parts if part.name == "prefill"), 0.0)
        agent = count(tokens, "token") if tokens else ""
        return Cause(code=CauseCode.LONG_PROMPT, seconds=prompt_s, agent=agent, at_s=at_s)
    if largest is None or largest.seconds < max(_LEAST_S, _AVOIDABLE * reading.total_s):
        return Cause(code=CauseCode.OWN_WORK, seconds=own_work_seconds(reading))
    return largest.cause


def _tokens(reading: Reading) -> list[TokenCell]:
    cells: list[TokenCell] = []
    for turn in reading.turns:
        accepted_s = turn.told.begin_s - reading.begin_s
        stops = [event.at_s - reading.begin_s for event in turn.told.events if event.name == "engine.preempted"]
        cells += token_cells(turn.own, accepted_s, stops, moved=turn.moved)
    return cells
