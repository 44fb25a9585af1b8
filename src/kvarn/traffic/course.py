"""Course of a conversation: which turns come when one has been answered. For a load generator and a simulator.

    turn 0 ──answered──> gap ──> turn 1 ──answered──┬──> sub-agent a: turn 0 ──> turn 1 ──┐
                                                    └──> sub-agent b: turn 0 ─────────────┴──> gap ──> turn 2

The next turn waits for the sub-agents of the turn before it, but for those that are not awaited. Those of the last turn
run on by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvarn.traffic.conversation import Conversation, ConversationTurn


@dataclass(slots=True)
class _Join:
    """A turn that waits for sub-agents."""

    running: int
    conversation: Conversation
    number: int
    join: _Join | None


@dataclass(frozen=True, slots=True, eq=False)
class DueTurn:
    """A turn and the moment when it is sent."""

    at_s: float
    conversation: Conversation
    number: int = 0
    """Its place in the conversation."""
    _join: _Join | None = None

    @property
    def turn(self) -> ConversationTurn:
        return self.conversation.turns[self.number]

    def answered(self, at_s: float) -> list[DueTurn]:
        """Turns that become due because this one was answered at `at_s`, or failed and the client goes on. To be called
        once."""
        number, has_next = self.number + 1, self.number + 1 < len(self.conversation.turns)
        agents = self.turn.subagents
        awaited = sum(each.is_awaited for each in agents) if has_next else 0
        join = _Join(awaited, self.conversation, number, self._join) if awaited else None
        due = [DueTurn(at_s + each.begins_s, each, 0, join if each.is_awaited else None) for each in agents]
        if not has_next:
            return due + self._ended(at_s)
        if awaited:
            return due
        return [*due, DueTurn(at_s + self.conversation.turns[number].gap_s, self.conversation, number, self._join)]

    def _ended(self, at_s: float) -> list[DueTurn]:
        join = self._join
        if join is None:
            return []
        join.running -= 1
        if join.running:
            return []
        gap_s = join.conversation.turns[join.number].gap_s
        return [DueTurn(at_s + gap_s, join.conversation, join.number, join.join)]


def first_turn(conversation: Conversation) -> DueTurn:
    """The turn that begins a conversation, at its `begins_s`."""
    return DueTurn(conversation.begins_s, conversation)
