"""Conversations with the rate and the lengths of a plan's traffic."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kvarn.planner.lengths import Lengths
from kvarn.planner.request import PlanRequest, TrafficRequest
from kvarn.traffic.arrivals import ArrivalPattern, arrivals
from kvarn.traffic.conversation import Conversation, ConversationTurn
from kvarn.traffic.distributions import Quantiles
from kvarn.traffic.sessions import single_requests
from kvarn.traffic.workload import Segment

_SHARED = 1 << 61
"""Key of the tokens that prompts have in common."""


def peak_traffic(request: PlanRequest) -> TrafficRequest:
    """The traffic at the rate that a plan's deployments have to bear: its headroom is not for requests."""
    traffic = request.traffic
    return traffic.model_copy(update={"rate_rps": traffic.rate_rps / (1 - request.choices.headroom)})


def planned_traffic(traffic: TrafficRequest, duration_s: float, seed: int = 0) -> Iterator[Conversation]:
    """Single requests: what a cache would find of a prompt is a beginning that all of them share."""
    prompts, outputs = (
        _distribution(Lengths.of(each, traffic.length_variation))
        for each in (traffic.input_tokens, traffic.output_tokens)
    )
    pattern = ArrivalPattern(cv=math.sqrt(traffic.burstiness))
    times = arrivals(pattern, traffic.rate_rps, seed, duration_s)
    for each in single_requests(times, prompts, outputs, seed):
        (turn,) = each.turns
        (own,) = turn.segments
        shared = int(own.length * traffic.cached_share)
        segments = (Segment(_SHARED, shared), Segment(own.key, own.length - shared)) if shared else (own,)
        answering = ConversationTurn(segments=segments, output_tokens=turn.output_tokens)
        yield Conversation(begins_s=each.begins_s, turns=(answering,))


def _distribution(lengths: Lengths) -> Quantiles:
    """Equally likely lengths as steps: linear between the middles of their shares."""
    values = lengths.values
    middles = [((number + 0.5) / len(values), value) for number, value in enumerate(values)]
    return Quantiles(((0.0, values[0]), *middles, (1.0, values[-1])))
