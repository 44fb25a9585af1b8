"""Policies that pick a replica: filter, score, pick. Pure functions of candidates, the clock and a source of chance."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from kvarn.routing.candidate import Candidate, RouteRequest
from kvarn.wire.block_events import NAME_BYTES

EVICTED = 0.25  # a cached token that must go is likely to be computed again: it counts as this part of one to compute
AFFINITY = 0.1
"""The replica that answered a conversation before is scored as if this part of the prompt more were cached there."""
ADAPTER_S = 0.05  # seconds that it takes to bring an adapter to the device, where no sequence runs with it
KV_FULL_WEIGHT = 4  # a token for which there is no room waits for others to end: it counts as this many to compute
TIE_S = 0.002
TIE = 0.02  # scores that differ by less than this many seconds, or this part, are as good as equal
BLIND_BLOCKS = 8  # blocks of a prompt's beginning that decide where it goes while nothing is known of the caches


@dataclass(frozen=True, slots=True)
class Situation:
    """Facts for a policy besides the candidates."""

    now: float  # monotonic seconds
    chance: random.Random
    last: str | None = None  # name of the replica that answered the request's conversation before
    busy_share: float = 0.0  # part of the candidates that have prompts to compute before this one


Policy = Callable[[RouteRequest, Sequence[Candidate], Situation], Candidate]  # picks one of at least one candidate


def usable(request: RouteRequest, candidates: Iterable[Candidate], now: float) -> list[Candidate]:
    """Those that may answer at all: that take requests, have not failed this one, have its adapter, and are not silent
    while others are not. One that is silent gets nothing because those that are heard refuse it."""
    adapter, excluded = request.adapter, request.excluded
    able = [
        each
        for each in candidates
        if each.available
        and each.name not in excluded
        and (not adapter or each.adapters is None or adapter in each.adapters)
    ]
    heard = [each for each in able if not each.is_silent(now)]
    return [each for each in heard or able if each.name not in request.refusing]


def score(request: RouteRequest, candidate: Candidate, situation: Situation) -> float:
    """Predicted seconds to the first token, and what else speaks against a candidate, in seconds; less is better.

    The weights were chosen on the Mooncake conversation trace (`benchmarks/routing.py`,
    docs/internals/measured_serving.md).
    """
    prompt, uncached = request.prompt_tokens, candidate.uncached(request.prompt_tokens)
    # What is computed although another replica has it is at the cost of those who wait, if any do.
    own_weight = 1 + situation.busy_share
    seconds = candidate.wait_s(situation.now) + own_weight * candidate.prefill_s(prompt)
    seconds += candidate.load * candidate.row_s
    needed = uncached + candidate.reserved_tokens
    if needed > candidate.empty_tokens:
        evicted = min(uncached, needed - candidate.empty_tokens)
        missing = max(0.0, needed - candidate.free_tokens)
        seconds += (EVICTED * evicted + KV_FULL_WEIGHT * missing) / candidate.speed
    if request.adapter and request.adapter not in candidate.resident_adapters:
        seconds += ADAPTER_S
    if candidate.name == situation.last:
        seconds -= AFFINITY * own_weight * prompt / candidate.speed
    return seconds


def pick_lowest(scores: Sequence[float], chance: random.Random) -> int:
    """Position of the lowest score. Among those nearly as low each has a part of the chance (softmin), so that several
    gateways that see the same statistics do not all pick the same."""
    best = min(scores)
    width = max(TIE_S, TIE * abs(best))
    near = [position for position, each in enumerate(scores) if each - best < 3 * width]
    if len(near) == 1:
        return near[0]
    return chance.choices(near, [math.exp((best - scores[position]) / width) for position in near])[0]


def by_prefix(request: RouteRequest, candidates: Sequence[Candidate], situation: Situation) -> Candidate:
    """The lowest score; while nothing is known of any cache, the same replica for prompts that begin alike."""
    if not any(each.knows_blocks for each in candidates):
        return _by_beginning(request, candidates, situation)
    busy = sum([each.queue_tokens + each.reserved_tokens > 0 for each in candidates])
    situation = Situation(situation.now, situation.chance, situation.last, busy / len(candidates))
    scores = [score(request, each, situation) for each in candidates]
    return candidates[pick_lowest(scores, situation.chance)]


def by_prefix_only(request: RouteRequest, candidates: Sequence[Candidate], situation: Situation) -> Candidate:
    """The longest cached prefix, whatever its load; among equals the least load."""
    return min(candidates, key=lambda each: (-each.cached_tokens, each.load, each.picked, situation.chance.random()))


def by_load(request: RouteRequest, candidates: Sequence[Candidate], situation: Situation) -> Candidate:
    """The least load, 4 x waiting + running; among equals in turn."""
    return min(candidates, key=lambda each: (each.load, each.picked, situation.chance.random()))


def in_turn(request: RouteRequest, candidates: Sequence[Candidate], situation: Situation) -> Candidate:
    return min(candidates, key=lambda each: each.picked)


def at_random(request: RouteRequest, candidates: Sequence[Candidate], situation: Situation) -> Candidate:
    return situation.chance.choice(candidates)


def _by_beginning(request: RouteRequest, candidates: Sequence[Candidate], situation: Situation) -> Candidate:
    """Rendezvous hashing with bounded load: of the conversation, else of the prompt's first blocks."""
    beginning = request.names[: BLIND_BLOCKS * NAME_BYTES][-NAME_BYTES:]  # a name stands for all before it
    key = request.session.encode() or beginning
    if not key:
        return by_load(request, candidates, situation)
    by_name = {each.name: each for each in candidates}
    return by_name[order_by_rank(key, {name: each.load for name, each in by_name.items()})[0]]


POLICIES: dict[str, Policy] = {
    "prefix": by_prefix,
    "prefix_only": by_prefix_only,
    "least_load": by_load,
    "round_robin": in_turn,
    "random": at_random,
}
"""By their names in the configuration (`routing.policy`)."""

READS_NAMES = frozenset({"prefix", "prefix_only"})  # policies for which prompts are hashed and blocks are told


def rank(key: bytes, names: Iterable[str]) -> list[str]:
    """The names in the key's own order of preference."""
    return sorted(names, key=lambda name: (-xxh3_64_intdigest(name.encode() + b"\0" + key), name))


def order_by_rank(key: bytes, loads: Mapping[str, int], balance: float = 1.25) -> list[str]:
    """The names to try, in this order: by rank, those that have their part of the load already last. `balance`: what
    each may have after this one, relative to the mean; > 1."""
    if not loads:
        return []
    bound = math.ceil(balance * (sum(loads.values()) + 1) / len(loads))
    ranked = rank(key, loads)
    return [name for name in ranked if loads[name] < bound] + [name for name in ranked if loads[name] >= bound]
