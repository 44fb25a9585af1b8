"""Clients: they begin conversations, wait for each answer before the next turn, and may lose patience."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kvarn.simulator.request import End, SimulatedRequest
from kvarn.simulator.world import World
from kvarn.traffic.conversation import Traffic
from kvarn.traffic.course import DueTurn, first_turn
from kvarn.wire.block_names import NamedPrompt, PrefixScope, root_hash
from kvarn.wire.sessions import SessionTurn

_OWN_KEYS = 1 << 62
"""Keys of answers that no later turn repeats: above those of segments."""


class Stream(NamedTuple):
    """Traffic that plays, the model that all of it asks (empty: the one that a conversation names, else the first), and
    its tier."""

    traffic: Traffic
    model: str = ""
    priority: int = 0


class Clients:
    """Plays one stream of conversations. `send` is given each request when it leaves its client. No turn begins after
    `until_s`; a conversation ends with the first turn that has no answer. `model`: asked where none
    is named."""

    def __init__(
        self,
        world: World,
        stream: Stream,
        send: Callable[[SimulatedRequest], None],
        leave: Callable[[SimulatedRequest], None],
        *,
        until_s: float,
        model: str,
        numbers: Iterator[int],
        timeout_s: float | None = None,
    ) -> None:
        self._world = world
        self._stream = stream
        self._send = send
        self._leave = leave
        self._until_s = until_s
        self._model = model
        self._numbers = numbers
        self._timeout_s = timeout_s
        self._roots: dict[str, bytes] = {}  # of the names of a tenant's blocks
        self._open = 0  # turns that are due or under way
        self._has_more = True
        self._next()

    @property
    def are_done(self) -> bool:
        return not self._has_more and not self._open

    def _next(self) -> None:
        """Wait for the next conversation."""
        conversation = next(self._stream.traffic, None)
        if conversation is None or conversation.begins_s > self._until_s:
            self._has_more = False
            return
        self._world.at(conversation.begins_s, self._begin, first_turn(conversation))

    def _begin(self, due: DueTurn) -> None:
        self._open += 1
        self._ask(due)
        self._next()

    def _ask(self, due: DueTurn) -> None:
        turn, conversation = due.turn, due.conversation
        name, tenant = conversation.session, conversation.tenant
        is_last = due.number == len(conversation.turns) - 1
        number = next(self._numbers)
        answer_key = _OWN_KEYS + number if turn.answer_key is None else turn.answer_key
        segments = [(segment.key, segment.length) for segment in turn.segments]
        request = SimulatedRequest(
            number,
            self._stream.model or conversation.model or self._model,
            NamedPrompt.of(self._root_of(tenant), segments, (answer_key, turn.output_tokens)),
            turn.output_tokens,
            self._world.now,
            lambda request: self._ended(request, due),
            tenant=tenant,
            priority=self._stream.priority,
            session=SessionTurn(id=_digest(tenant, name), is_last=is_last) if name else None,
            session_name=name,
            is_tool_call=turn.is_tool_call,
        )
        self._send(request)
        if self._timeout_s is not None and request.end is None:
            self._world.after(self._timeout_s, self._lose_patience, request)

    def _root_of(self, tenant: str) -> bytes:
        found = self._roots.get(tenant)
        if found is None:
            found = self._roots[tenant] = root_hash(PrefixScope(tenant))
        return found

    def _lose_patience(self, request: SimulatedRequest) -> None:
        if request.end is None:
            self._leave(request)

    def _ended(self, request: SimulatedRequest, due: DueTurn) -> None:
        self._open -= 1
        if request.end is not End.ANSWERED:
            return
        for following in due.answered(self._world.now + request.answer_delay_s):
            if following.at_s <= self._until_s:
                self._open += 1
                self._world.at(following.at_s, self._ask, following)


def _digest(tenant: str, session: str) -> bytes:
    return hashlib.blake2b(f"{tenant}\0{session}".encode(), digest_size=16).digest()
