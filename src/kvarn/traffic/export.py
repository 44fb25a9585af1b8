"""Traffic written as a trace: Mooncake's lines or Weka's conversations. Lengths and block ids, no texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from kvarn.traffic.conversation import Conversation, Traffic
from kvarn.traffic.formats import MOONCAKE_BLOCK, MooncakeLine
from kvarn.traffic.weka import WEKA_BLOCK, WekaConversation, WekaRequest
from kvarn.traffic.workload import Segment

ExportFormat = Literal["mooncake", "weka"]
_encode = msgspec.json.Encoder().encode


class BlockIds:
    """Ids of prompts' blocks, numbered in the order in which they are first seen. Prompts that begin alike have the
    same ids that far."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._numbers: dict[bytes, int] = {}
        self._segments: Sequence[Segment] = ()  # of the prompt before: the next one often repeats it
        self._ids: list[int] = []
        self._places: list[_Place] = []  # after each of these segments

    def of(self, segments: Sequence[Segment]) -> list[int]:
        common = 0
        for one, other in zip(self._segments, segments, strict=False):
            if one != other:
                break
            common += 1
        place = self._places[common - 1] if common else _Place(0, b"", (), self._block)
        ids, places = self._ids[: place.blocks], self._places[:common]
        for segment in segments[common:]:
            place = self._behind(place, segment, ids)
            places.append(place)
        self._segments, self._ids, self._places = segments, ids, places
        return [*ids, self._numbered(place)[1]] if place.pieces else list(ids)

    def _behind(self, place: _Place, segment: Segment, ids: list[int]) -> _Place:
        _, parent, pieces, room = place
        offset = 0
        while offset < segment.length:
            taken = min(room, segment.length - offset)
            pieces = (*pieces, f"{segment.key}:{offset}:{taken}")
            offset, room = offset + taken, room - taken
            if not room:
                parent, number = self._numbered(_Place(len(ids), parent, pieces, 0))
                ids.append(number)
                pieces, room = (), self._block
        return _Place(len(ids), parent, pieces, room)

    def _numbered(self, place: _Place) -> tuple[bytes, int]:
        """Name and number of the block that the pieces at a place make."""
        name = hashlib.blake2b(place.parent + " ".join(place.pieces).encode(), digest_size=16).digest()
        return name, self._numbers.setdefault(name, len(self._numbers))


class _Place(NamedTuple):
    """State of a prompt after some of its segments."""

    blocks: int
    """Full blocks."""
    parent: bytes
    """Name of the last of them."""
    pieces: tuple[str, ...]
    """Parts of segments that the next block has so far."""
    room: int
    """Tokens that it still takes."""


def written(traffic: Traffic, form: ExportFormat = "mooncake", block: int | None = None) -> Iterator[bytes]:
    """Lines of a trace, without their ends. Mooncake's have a `delay` and no time for the turns of a session after its
    first. Weka's say nothing of when conversations begin, nor of what they share with each other.

    Args:
        traffic: Conversations.
        form: Format.
        block: Tokens of a block; None: as usual in the format, 512 or 64.

    Raises:
        ValueError: A conversation has sub-agents, and the format is Mooncake's.
    """
    if form == "weka":
        for number, each in enumerate(traffic):
            yield _encode(_weka(each, block or WEKA_BLOCK, number))
        return
    ids = BlockIds(block or MOONCAKE_BLOCK)
    for number, each in enumerate(traffic):
        yield from map(_encode, _mooncake(each, ids, block or MOONCAKE_BLOCK, number))


def _mooncake(conversation: Conversation, ids: BlockIds, block: int, number: int) -> Iterator[MooncakeLine]:
    is_chat = len(conversation.turns) > 1
    session = conversation.session or (f"conversation-{number}" if is_chat else "")
    for place, turn in enumerate(conversation.turns):
        if turn.subagents:
            raise ValueError("Mooncake's format has no sub-agents: write the conversations in Weka's")
        yield MooncakeLine(
            timestamp=None if place else round(conversation.begins_s * 1000, 3),
            input_length=turn.prompt_tokens,
            output_length=turn.output_tokens,
            hash_ids=ids.of(turn.segments),
            session_id=session,
            delay=round(turn.gap_s * 1000, 3) if place else None,
            turns=len(conversation.turns) if session and not place else None,
            duration=round(turn.took_s * 1000, 3),
            tenant=conversation.tenant,
            model=conversation.model,
            block_size=block,
        )


def _weka(conversation: Conversation, block: int, number: int) -> WekaConversation:
    ids = BlockIds(block)
    requests, _ = _weka_requests(conversation, ids, 0.0)
    name = conversation.session or f"conversation-{number}"
    return WekaConversation(requests=requests, id=name, block_size=block, tenant=conversation.tenant)


def _weka_requests(conversation: Conversation, ids: BlockIds, now: float) -> tuple[list[WekaRequest], float]:
    """Its calls and sub-agents from a moment on, and when the last call ends."""
    made: list[WekaRequest] = []
    for turn in conversation.turns:
        now += turn.gap_s
        took = turn.took_s
        made.append(
            WekaRequest(
                t=round(now, 6),
                input=turn.prompt_tokens,
                out=turn.output_tokens,
                hash_ids=ids.of(turn.segments),
                api_time=round(took, 6),
                stop="tool_use" if turn.is_tool_call else "end_turn",
                model=conversation.model,
            )
        )
        answered = now = now + took
        for place, agent in enumerate(turn.subagents):
            calls, ends = _weka_requests(agent, ids, answered + agent.begins_s)
            made.append(
                WekaRequest(
                    t=round(answered, 6),
                    type="subagent",
                    agent_id=agent.session.rpartition("/")[2] or str(place),
                    requests=calls,
                )
            )
            now = max(now, ends) if agent.is_awaited else now
    return made, now
