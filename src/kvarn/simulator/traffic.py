"""Conversations of a scenario's traffic: made by a preset or by lengths, or recorded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from kvarn.simulator.scenario import ScenarioError, TrafficConfig
from kvarn.traffic.arrivals import ArrivalPattern, arrivals
from kvarn.traffic.conversation import Conversation, ConversationTurn, Traffic
from kvarn.traffic.entries import TraceError
from kvarn.traffic.presets import traffic_of
from kvarn.traffic.replay import replay
from kvarn.traffic.scaling import Scaling
from kvarn.traffic.workload import Segment


def conversations(config: TrafficConfig, seed: str, duration_s: float) -> Traffic:
    """The conversations of a stream in the order in which they begin. `seed`: names its stream of chance. Raises
    `ScenarioError`."""
    chance = random.Random(seed)
    number = chance.getrandbits(32)
    pattern = ArrivalPattern.parse(config.pattern)
    if config.trace is not None:
        found = _recorded(config, number, duration_s)
    elif config.preset is not None:
        found = traffic_of(config.preset, rps=config.rate or 1.0, duration_s=duration_s, seed=number, pattern=pattern)
    else:
        found = _made(config, chance, arrivals(pattern, config.rate or 1.0, number, duration_s))
    return _with_tenants(islice(found, config.max_requests), config.tenants, chance)


def _with_tenants(traffic: Traffic, tenants: int, chance: random.Random) -> Traffic:
    for conversation in traffic:
        if tenants == 1 or conversation.tenant:
            yield conversation
        else:
            yield msgspec.structs.replace(conversation, tenant=f"tenant-{int(chance.random() * tenants)}")


def _made(config: TrafficConfig, chance: random.Random, begins: Iterator[float]) -> Iterator[Conversation]:
    """Single requests, lengths uniform."""
    shared = config.shared_prefix_tokens
    prefix = (Segment(key=0, length=shared),) if shared else ()
    for number, begins_s in enumerate(begins, 1):
        own = Segment(key=number, length=_between(config.prompt_tokens, chance))
        turn = ConversationTurn(segments=(*prefix, own), output_tokens=_between(config.output_tokens, chance))
        yield Conversation(begins_s=begins_s, turns=(turn,))


def _between(bounds: tuple[int, int], chance: random.Random) -> int:
    low, high = bounds
    return low + int(chance.random() * (high - low + 1))


def _recorded(config: TrafficConfig, seed: int, duration_s: float) -> Traffic:
    assert config.trace is not None, "it names a trace"
    pattern = None if config.pattern == "poisson" else ArrivalPattern.parse(config.pattern)
    try:
        yield from replay(
            Path(config.trace),
            config.trace_format,
            scaling=Scaling(length=config.length_scale),
            rps=config.rate,
            pattern=pattern,
            duration_s=duration_s,
            seed=seed,
        )
    except (TraceError, ValueError) as error:
        raise ScenarioError(str(error)) from None
