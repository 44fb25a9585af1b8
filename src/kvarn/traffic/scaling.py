"""Scaling of traffic to the server under test: time, lengths, rate, duration. What prompts share is kept."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from itertools import count, takewhile

import msgspec

from kvarn.traffic.conversation import Conversation, ConversationTurn, Traffic
from kvarn.traffic.draws import Draws
from kvarn.traffic.workload import Segment, cut

COPY_BITS = 49
"""A copy's segment keys are those of the original plus its number, shifted by so many bits."""
_KEY_BITS = 62
MAX_COPIES = 1 << (_KEY_BITS - COPY_BITS)
SPREAD_S = 5.0
"""Seconds within which copies of a conversation begin, after it."""
_BLOCK = 256


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """Factors and bounds; the default changes nothing."""

    time: float = 1.0
    """Multiplies times and gaps: 0.5 sends twice as fast."""
    rate: float = 1.0
    """Multiplies the number of conversations: below 1 some are left out, above it some come again as copies of their
    own, which begin within `SPREAD_S` after them. The curve of the rate and its bursts keep their shape."""
    length: float = 1.0
    """Multiplies prompt, output and shared block lengths: structure stays, sizes shrink."""
    max_prompt_tokens: int | None = None
    """Longer prompts are cut at their end, so that what they share is kept."""
    max_output_tokens: int | None = None
    """Longer answers are cut."""


def scaled(traffic: Traffic, scaling: Scaling, seed: int = 0) -> Traffic:
    """Traffic with other times, lengths and rate. The seed decides which conversations are left out or copied.

    Raises:
        ValueError: A factor is not above 0 (`time` may be 0), or the rate is to grow too far.
    """
    if scaling.length <= 0.0 or scaling.rate <= 0.0 or scaling.time < 0.0:
        raise ValueError("factors of rate and length are above 0, that of time is not below it")
    if scaling.rate > MAX_COPIES:
        raise ValueError(f"the rate grows at most {MAX_COPIES} times")
    played = traffic if scaling.rate == 1.0 else _multiplied(traffic, scaling.rate, seed)
    return (_resized(each, scaling) for each in played)


def beginning_at(traffic: Traffic, times: Iterator[float]) -> Traffic:
    """The conversations in their order, begun at other times, as long as there are both."""
    for begins_s, each in zip(times, traffic, strict=False):
        yield msgspec.structs.replace(each, begins_s=begins_s)


def until(traffic: Traffic, duration_s: float) -> Traffic:
    """Conversations that begin within the duration."""
    return takewhile(lambda each: each.begins_s <= duration_s, traffic)


def repeated(again: Callable[[], Traffic], duration_s: float, copies: int = 1) -> Traffic:
    """Traffic that is begun again when it ends, until a duration is filled. Each pass has prompts of its own.

    Between the last beginning of a pass and the first of the next there is a pass's mean gap.

    Args:
        again: Makes the traffic, the same each time.
        duration_s: Seconds after which no conversation begins.
        copies: Copies of a conversation in a pass, at most: the rate's factor, rounded up.

    Raises:
        ValueError: All conversations begin at once, or it would be repeated too often.
    """
    start = 0.0
    for number in count():
        last, seen = 0.0, 0
        for each in again():
            last, seen = each.begins_s, seen + 1
            if start + last > duration_s:
                return
            yield _copy(each, number * copies, start + last)
        if not last:
            raise ValueError("the conversations begin all at once: give a rate to fill a duration")
        if (number + 2) * copies > MAX_COPIES:
            raise ValueError(f"the trace is too short for this duration: it can be repeated {number + 1} times")
        start += last * (seen / (seen - 1))


def endless(again: Callable[[], Traffic], copies: int = 1) -> Traffic:
    """The conversations over and over, for `beginning_at`. Each pass has prompts of its own; see `repeated`."""
    for number in range(MAX_COPIES // copies):
        for each in again():
            yield _copy(each, number * copies, each.begins_s)
    raise ValueError(f"the trace is too short: it can be repeated {MAX_COPIES // copies} times")


def apart(traffic: Traffic, number: int) -> Traffic:
    """Traffic whose prompts share nothing with those of other streams that have another number, from 0 on."""
    return (_copy(each, number << (_KEY_BITS - COPY_BITS), each.begins_s, is_named=False) for each in traffic)


def _multiplied(traffic: Traffic, factor: float, seed: int) -> Traffic:
    """Copies of each: the whole part of the factor, and another one by chance."""
    chances = _uniform(seed, 30)
    delays = _uniform(seed, 31)
    whole = math.floor(factor)
    waiting: list[tuple[float, int, Conversation]] = []
    order = count()
    for each in traffic:
        while waiting and waiting[0][0] <= each.begins_s:
            yield heapq.heappop(waiting)[2]
        copies = whole + (next(chances) < factor - whole)
        for number in range(copies):
            begins_s = each.begins_s + (next(delays) * SPREAD_S if number else 0.0)
            heapq.heappush(waiting, (begins_s, next(order), _copy(each, number, begins_s)))
    while waiting:
        yield heapq.heappop(waiting)[2]


def _uniform(seed: int, stream: int) -> Iterator[float]:
    draws = Draws(seed, stream)
    while True:
        yield from draws.uniform(_BLOCK).tolist()


def _copy(conversation: Conversation, number: int, begins_s: float, *, is_named: bool = True) -> Conversation:
    """A conversation with the same lengths, and other tokens than the copies with other numbers.

    `is_named`: its session gets a name of its own.
    """
    if not number:
        return msgspec.structs.replace(conversation, begins_s=begins_s)
    shift = number << COPY_BITS
    known: dict[Segment, Segment] = {}

    def other(segment: Segment) -> Segment:
        return known.setdefault(segment, Segment(segment.key + shift, segment.length))

    def turn(each: ConversationTurn) -> ConversationTurn:
        return msgspec.structs.replace(
            each,
            segments=tuple(map(other, each.segments)),
            answer_key=None if each.answer_key is None else each.answer_key + shift,
            subagents=tuple(_copy(agent, number, agent.begins_s, is_named=is_named) for agent in each.subagents),
        )

    session = f"{conversation.session}+{number}" if conversation.session and is_named else conversation.session
    turns = tuple(map(turn, conversation.turns))
    return msgspec.structs.replace(conversation, begins_s=begins_s, session=session, turns=turns)


def _resized(conversation: Conversation, scaling: Scaling) -> Conversation:
    if scaling == Scaling(rate=scaling.rate):
        return conversation
    return msgspec.structs.replace(
        conversation,
        begins_s=conversation.begins_s * scaling.time,
        turns=tuple(_resized_turn(each, scaling) for each in conversation.turns),
    )


def _resized_turn(turn: ConversationTurn, scaling: Scaling) -> ConversationTurn:
    output = max(1, round(turn.output_tokens * scaling.length))
    segments = turn.segments
    if scaling.length != 1.0:
        segments = tuple(Segment(each.key, max(1, round(each.length * scaling.length))) for each in segments)
    return msgspec.structs.replace(
        turn,
        segments=segments if scaling.max_prompt_tokens is None else cut(segments, scaling.max_prompt_tokens),
        output_tokens=min(output, scaling.max_output_tokens or output),
        gap_s=turn.gap_s * scaling.time,
        took_s=turn.took_s * scaling.time,
        subagents=tuple(_resized(each, scaling) for each in turn.subagents),
    )
