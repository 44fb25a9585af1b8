"""Conversations of a scenario's traffic: made by a preset or by lengths, or recorded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from kvarn.simulator.scenario import ScenarioError, TrafficConfig
from kvarn.traffic.conversation import Conversation, ConversationTurn, Traffic
from kvarn.traffic.trace import Scaling, TraceError, read_trace, scale_trace
from kvarn.traffic.workload import Segment


def conversations(config: TrafficConfig, seed: str, until_s: float) -> Traffic:
    """The conversations of a stream in the order in which they begin. `seed`: names its stream of chance. Raises
    `ScenarioError`."""
    chance = random.Random(seed)
    if config.trace is not None:
        return _with_tenants(_recorded(config, Path(config.trace)), config, chance)
    return _with_tenants(_made(config, chance, until_s), config, chance)


def _with_tenants(traffic: Traffic, config: TrafficConfig, chance: random.Random) -> Traffic:
    for number, conversation in enumerate(traffic):
        if config.max_requests is not None and number >= config.max_requests:
            return
        if config.tenants == 1 or conversation.tenant:
            yield conversation
        else:
            tenant = f"tenant-{int(chance.random() * config.tenants)}"
            yield Conversation(
                begins_s=conversation.begins_s,
                turns=conversation.turns,
                tenant=tenant,
                session=conversation.session,
                model=conversation.model,
            )


def _made(config: TrafficConfig, chance: random.Random, until_s: float) -> Iterator[Conversation]:
    """Single requests: a Poisson process, lengths uniform."""
    rate, now, shared = config.rate or 1.0, 0.0, config.shared_prefix_tokens
    prefix = (Segment(key=0, length=shared),) if shared else ()
    number = 0
    while (now := now + chance.expovariate(rate)) <= until_s:
        number += 1
        own = Segment(key=number, length=_between(config.prompt_tokens, chance))
        turn = ConversationTurn(segments=(*prefix, own), output_tokens=_between(config.output_tokens, chance))
        yield Conversation(begins_s=now, turns=(turn,))


def _between(bounds: tuple[int, int], chance: random.Random) -> int:
    low, high = bounds
    return low + int(chance.random() * (high - low + 1))


def _recorded(config: TrafficConfig, path: Path) -> Iterator[Conversation]:
    try:
        entries = read_trace(path, config.trace_format, config.max_requests)
    except TraceError as error:
        raise ScenarioError(str(error)) from None
    if not entries:
        raise ScenarioError(f"the trace {path} holds no requests")
    last = entries[-1].arrival_s
    factor = 1.0 if config.rate is None or not last else len(entries) / config.rate / last
    for request in scale_trace(entries, Scaling(time=factor)):
        turn = ConversationTurn(segments=request.segments, output_tokens=request.output_tokens)
        yield Conversation(begins_s=request.arrival_s or 0.0, turns=(turn,))
