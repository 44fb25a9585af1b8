"""Counterfactuals: how long a request would have taken otherwise, by the learned times of steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvarn.costs.step_times import StepShape
from kvarn.explain.causes import Candidate, in_flight_seconds, own_prompt_seconds
from kvarn.explain.explanation import CauseCode, Counterfactual
from kvarn.explain.parts import EngineReading, Reading
from kvarn.explain.words import seconds
from kvarn.explain.work import alone_seconds
from kvarn.observe.timeline import Phase

MAX_CHANGES = 2
_ROUNDING_S = 1e-9
_WORTH = 0.05
"""Share of the total that a change must spare to be told."""
_LEAST_ERROR = 0.02
"""Error of predictions, as a share, that is never undercut."""
_VAGUE = 0.25
"""Error, as a share of what is spared, above which a total is told as about so much; above twice that, not at all."""
_FEWEST_TOKENS = 32
"""Tokens of a prompt from which on a cached prefix is of use: two blocks."""
_OTHERS = frozenset(
    {
        CauseCode.ADMISSION,
        CauseCode.QUEUE_SLOT,
        CauseCode.QUEUE_BUDGET,
        CauseCode.QUEUE_LATENCY,
        CauseCode.QUEUE_BLOCKS,
        CauseCode.QUEUE_PRIORITY,
        CauseCode.SHARED_STEPS,
        CauseCode.PREEMPTED,
    }
)
"""Causes that scale with what others ask of the replica."""
_REMEDIES = {
    CauseCode.CLIENT_SEND: ("upload", "Sent at once"),
    CauseCode.LIMIT: ("limit", "Within its limits"),
    CauseCode.NO_REPLICA: ("ready", "With a replica ready"),
    CauseCode.COLD_MODEL: ("awake", "With the model running"),
    CauseCode.QUEUE_ADAPTER: ("adapter", "Adapter loaded before"),
    CauseCode.QUEUE_TIER: ("memory", "Prefix in the KV cache already"),
    CauseCode.QUEUE_GRAMMAR: ("grammar", "Grammar compiled before"),
    CauseCode.SLOW_STEPS: ("speed", "With steps as fast as usual"),
    CauseCode.FAILOVER: ("healthy", "With no replica lost"),
    CauseCode.PREPARE: ("prepare", "With its prompt prepared at once"),
    CauseCode.MODERATION: ("moderation", "Without moderation"),
    CauseCode.CLIENT_READ: ("reader", "Read at once"),
}
"""Changes that take a cause away, and nothing else."""


def counterfactuals_of(reading: Reading, causes: Sequence[Candidate], replicas: int) -> list[Counterfactual]:
    """At most two changes that one could make, the one that spares most first; last, what it would have taken alone.
    `replicas`: the request could have gone to so many."""
    found = [each for each in _changes(reading, causes, replicas) if _is_worth(each, reading.total_s)]
    changes = sorted(found, key=lambda each: each.total_s)[:MAX_CHANGES]
    alone = _alone(reading)
    return changes if alone is None else [*changes, alone]


def _is_worth(change: Counterfactual, total_s: float) -> bool:
    spared_s = total_s - change.total_s
    return spared_s >= _WORTH * total_s and change.error_s <= 2 * _VAGUE * spared_s + _ROUNDING_S


def _changes(reading: Reading, causes: Sequence[Candidate], replicas: int) -> Iterable[Counterfactual]:
    others_s = sum(cause.seconds for cause in causes if cause.code in _OTHERS)
    # The work of others is spread over one more; how far a wait is shorter by that is not exact: it may end at once.
    spared_s = others_s / (replicas + 1)
    yield _less(reading, "replica", "One more replica", spared_s, error_s=spared_s / 2)
    for cause in causes:
        if cause.code in _REMEDIES:
            change, words = _REMEDIES[cause.code]
            yield _less(reading, change, words, cause.seconds)
    prompt_s, cached_s = own_prompt_seconds(reading), _cached_prompt_seconds(reading)
    if cached_s is not None:
        error_s = _error(reading) * prompt_s
        yield _less(reading, "cached", "Prefix cached", prompt_s - cached_s, error_s=error_s)
    prompts_s = sum(step.prompts_s for turn in reading.turns for step in turn.own if not step.again)
    yield _less(
        reading, "chunks", "Without others' prompts in its steps", prompts_s, error_s=_error(reading) * prompts_s
    )


def _cached_prompt_seconds(reading: Reading) -> float | None:
    """Seconds of the steps of prompts of which all but the last token is cached. None: there is little to cache, or the
    times of steps are not known."""
    prompts = [turn for turn in reading.turns if not turn.moved and _computed_tokens(turn) >= _FEWEST_TOKENS]
    if not prompts:
        return None
    total = 0.0
    for turn in prompts:
        if turn.steps is None or turn.model is None:
            return None
        total += turn.model.seconds(StepShape(decode_rows=1, decode_context=turn.steps.turns[0].prompt_tokens))
    return total


def _computed_tokens(turn: EngineReading) -> float:
    return sum(chunk.numbers["tokens"] for piece in turn.pieces if not piece.again for chunk in piece.chunks)


def _less(reading: Reading, change: str, words: str, spared_s: float, error_s: float = 0.0) -> Counterfactual:
    return _told(reading, change, words, reading.total_s - spared_s, error_s)


def _told(reading: Reading, change: str, words: str, total_s: float, error_s: float) -> Counterfactual:
    total_s = min(max(0.0, total_s), reading.total_s)
    error_s = min(error_s, total_s)
    about = "about " if error_s > _VAGUE * (reading.total_s - total_s) else ""
    return Counterfactual(change=change, text=f"{words}: {about}{seconds(total_s)}.", total_s=total_s, error_s=error_s)


def _alone(reading: Reading) -> Counterfactual | None:
    """The request with the replica to itself: what the gateway and the client took stays, except for admission."""
    engine_s = kept_s = 0.0
    for turn in reading.turns:
        if turn.steps is None or turn.model is None or not (turn.own and turn.whole) or turn.moved:
            return None
        engine_s += alone_seconds(turn.steps, turn.model, turn.own)
        own_waits = (Phase.WAIT_MASK, Phase.WAIT_ADAPTER, Phase.WAIT_FETCH)
        kept_s += sum(piece.end_s - piece.begin_s for piece in turn.pieces if piece.phase in own_waits)
    if not reading.turns:
        return None
    engine_names = ("queue", "prefill", "prefill again", "decode", "preempted")
    gateway_s = reading.total_s - reading.seconds(*engine_names, "admission")
    in_flight_s = in_flight_seconds(reading)  # alone, no step is in flight
    total_s = gateway_s - in_flight_s + kept_s + engine_s
    error_s = _error(reading) * engine_s + in_flight_s / 2
    return _told(reading, "alone", "Alone on its replica", total_s, error_s)


def _error(reading: Reading) -> float:
    """Error of predictions of steps, as a share of them."""
    spreads = [turn.model.spread for turn in reading.turns if turn.model is not None]
    return max(_LEAST_ERROR, *spreads) if spreads else _LEAST_ERROR
