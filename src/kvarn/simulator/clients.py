"""Clients: they begin conversations, wait for each answer before the next turn, and may lose patience."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from kvarn.simulator.prompts import Prompts
from kvarn.simulator.request import End, SimulatedRequest
from kvarn.simulator.world import World
from kvarn.traffic.conversation import Conversation, Traffic
from kvarn.wire.sessions import SessionTurn


class Clients:
    """Plays one stream of conversations. `send` is given each request when it leaves its client. No turn begins after
    `until_s`."""

    def __init__(
        self,
        world: World,
        traffic: Traffic,
        send: Callable[[SimulatedRequest], None],
        leave: Callable[[SimulatedRequest], None],
        *,
        until_s: float,
        numbers: Iterator[int],
        model: str = "",
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> None:
        self._world = world
        self._traffic = traffic
        self._send = send
        self._leave = leave
        self._until_s = until_s
        self._numbers = numbers
        self._model = model
        self._priority = priority
        self._timeout_s = timeout_s
        self._prompts = Prompts()
        self.num_open = 0  # conversations whose next turn or answer is to come
        self.has_more = True
        self._next()

    @property
    def are_done(self) -> bool:
        return not self.has_more and not self.num_open

    def _next(self) -> None:
        """Wait for the next conversation."""
        conversation = next(self._traffic, None)
        if conversation is None or conversation.begins_s > self._until_s:
            self.has_more = False
            return
        self._world.at(conversation.begins_s, self._begin, conversation)

    def _begin(self, conversation: Conversation) -> None:
        self.num_open += 1
        self._ask(conversation, 0, self._prompts.tokens(conversation.turns[0].segments))
        self._next()

    def _ask(self, conversation: Conversation, number: int, prompt: list[int]) -> None:
        turn, name = conversation.turns[number], conversation.session
        is_last = number == len(conversation.turns) - 1
        request = SimulatedRequest(
            next(self._numbers),
            conversation.model or self._model,
            prompt,
            turn.output_tokens,
            self._world.now,
            lambda request: self._ended(request, conversation, number),
            tenant=conversation.tenant,
            priority=self._priority,
            session=SessionTurn(id=_digest(conversation.tenant, name), is_last=is_last) if name else None,
            session_name=name,
            is_tool_call=turn.is_tool_call,
        )
        self._send(request)
        if self._timeout_s is not None and request.end is None:
            self._world.after(self._timeout_s, self._lose_patience, request)

    def _lose_patience(self, request: SimulatedRequest) -> None:
        if request.end is None:
            self._leave(request)

    def _ended(self, request: SimulatedRequest, conversation: Conversation, number: int) -> None:
        """The next turn of an answer; a conversation without an answer is over."""
        following = number + 1
        if request.end is End.ANSWERED and following < len(conversation.turns):
            before, turn = conversation.turns[number], conversation.turns[following]
            moment = self._world.now + turn.gap_s
            if moment <= self._until_s:
                prompt = self._prompts.next_turn(before, [*request.prompt, *request.tokens], turn)
                self._world.at(moment, self._ask, conversation, following, prompt)
                return
        self.num_open -= 1


def _digest(tenant: str, session: str) -> bytes:
    return hashlib.blake2b(f"{tenant}\0{session}".encode(), digest_size=16).digest()
