"""Conversations: turns that follow each other, each some time after the one before it was answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from kvarn.traffic.workload import Segment


class ConversationTurn(msgspec.Struct, frozen=True, kw_only=True):
    segments: tuple[Segment, ...]
    """The whole prompt: what went before is repeated."""
    output_tokens: int
    gap_s: float = 0.0
    """Seconds between the end of the turn before it (with its sub-agents) and this one; of the first turn, 0."""
    took_s: float = 0.0
    """Seconds that its answer took when it was recorded, where that is known. Whoever plays it has times of its own."""
    is_tool_call: bool = False
    """Whether its answer ends with a tool call: the next turn brings the tool's result."""
    answer_key: int | None = None
    """Key of the segment by which later turns repeat its answer; None: none of them does."""
    subagents: tuple[Conversation, ...] = ()
    """Conversations that its answer starts. Their `begins_s` counts from its end. See `kvarn.traffic.course`."""

    @property
    def prompt_tokens(self) -> int:
        return sum(segment.length for segment in self.segments)


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A client's turns; a single request is a conversation of one."""

    begins_s: float
    """Seconds after the start of the traffic."""
    turns: tuple[ConversationTurn, ...]
    tenant: str = ""
    session: str = ""
    """Its name, where the client tells that the turns belong together; a sub-agent's begins with its parent's."""
    model: str = ""
    """The model it asks; empty: whichever the traffic is for."""
    is_awaited: bool = True
    """A sub-agent: whether its parent's next turn waits for its end."""


Traffic: TypeAlias = Iterator[Conversation]
"""Conversations in the order of `begins_s`. Endless or not: whoever plays it stops."""


def turns_of(conversation: Conversation) -> Iterator[ConversationTurn]:
    """All turns, those of sub-agents after the turn that starts them."""
    for turn in conversation.turns:
        yield turn
        for each in turn.subagents:
            yield from turns_of(each)
