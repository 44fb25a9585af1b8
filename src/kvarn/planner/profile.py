"""Traffic of a plan from conversations: lengths by their quantiles, and what a prefix cache would find."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from kvarn.planner.errors import PlanError
from kvarn.planner.request import TrafficRequest
from kvarn.traffic.conversation import Conversation, ConversationTurn, turns_of
from kvarn.traffic.entries import TraceError
from kvarn.traffic.presets import PRESETS, traffic_of
from kvarn.traffic.trace import open_trace

MAX_TURNS = 4000
"""Turns that are looked at: enough for the 99th percentile of their lengths."""
_QUANTILES = 101
_ASSUMED_TTFT_S, _ASSUMED_TPOT_S = 0.5, 0.02
"""Time of an answer, for how long a conversation lasts."""


def profile_of(
    conversations: Iterable[Conversation], *, rate_rps: float | None = None, source: str = ""
) -> TrafficRequest:
    """The lengths of the first turns of some traffic. `rate_rps`: requests a second, in place of the traffic's own.

    Raises PlanError where there is no turn, or no rate is given and all turns come at once.
    """
    seen = _Prefixes()
    prompts: list[int] = []
    outputs: list[int] = []
    lasts: list[float] = []
    cached, first, latest = 0, None, 0.0
    for conversation in conversations:
        first = conversation.begins_s if first is None else first
        latest = conversation.begins_s
        now = 0.0
        for turn in islice(turns_of(conversation), MAX_TURNS - len(prompts)):
            prompts.append(turn.prompt_tokens)
            outputs.append(max(1, turn.output_tokens))
            cached += seen.add(turn)
            now += turn.gap_s + _ASSUMED_TTFT_S + turn.output_tokens * _ASSUMED_TPOT_S
        lasts.append(now)
        if len(prompts) >= MAX_TURNS:
            break
    if not prompts or first is None:
        raise PlanError("the traffic has no requests")
    own_rate = len(prompts) / (latest - first) if latest > first else None
    rate = rate_rps or own_rate
    if rate is None:
        raise PlanError("all requests of the traffic come at once: give the rate to plan for (--rps)")
    lasting = rate / len(prompts) * sum(lasts)
    return TrafficRequest(
        rate_rps=rate,
        input_tokens=_quantiles(prompts),
        output_tokens=_quantiles(outputs),
        cached_share=min(0.999, cached / sum(prompts)),
        cached_tokens=lasting * sum(prompts) / len(prompts),
        source=source,
    )


def _quantiles(values: list[int]) -> tuple[float, ...]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return tuple(float(max(1, ordered[round(index * last / (_QUANTILES - 1))])) for index in range(_QUANTILES))


class _Prefixes:
    """Names of all prefixes of segments that were sent, as a cache without bounds would keep them."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, int, int], int] = {}
        self._answers: set[int] = set()

    def add(self, turn: ConversationTurn) -> int:
        """Keep a prompt; returns how many of its tokens were kept before."""
        found, parent, is_known = 0, 0, True
        for segment in turn.segments:
            name = (parent, segment.key, segment.length)
            is_known = is_known and (name in self._names or segment.key in self._answers)
            found += segment.length if is_known else 0
            parent = self._names.setdefault(name, len(self._names) + 1)
        if turn.answer_key is not None:
            self._answers.add(turn.answer_key)
        return found


def preset_profile(name: str, rate_rps: float) -> TrafficRequest:
    """Traffic of a preset at a rate. Raises PlanError where there is no such preset."""
    try:
        conversations = traffic_of(name, rps=rate_rps)
    except ValueError as error:
        raise PlanError(str(error)) from None
    return profile_of(conversations, rate_rps=rate_rps, source=f"{name}: {PRESETS[name].source}")


def trace_profile(path: Path, rate_rps: float | None) -> TrafficRequest:
    """Recorded traffic, at its own rate or another one. Raises PlanError where it cannot be read."""
    try:
        return profile_of(open_trace(path), rate_rps=rate_rps, source=path.name)
    except TraceError as error:
        raise PlanError(str(error)) from None
