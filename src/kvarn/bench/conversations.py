"""Sending of conversations: a turn is sent when the one before it was answered and its gap is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from itertools import count
from typing import Any, TypeAlias

import msgspec

from kvarn.traffic.conversation import Conversation
from kvarn.traffic.course import DueTurn, first_turn
from kvarn.traffic.workload import BenchRequest

Encode: TypeAlias = Callable[[BenchRequest], bytes]
Send: TypeAlias = Callable[[BenchRequest, bytes, float], Coroutine[Any, Any, None]]
Clock: TypeAlias = Callable[[], float]


class ConversationSender:
    """Clients that hold conversations. One whose turn failed goes on with the next turn, as if it had been answered."""

    def __init__(self, encode: Encode, send: Send, now: Clock) -> None:
        self._encode, self._send, self._now = encode, send, now
        self._numbers = count()

    async def open_loop(self, conversations: Iterable[Conversation]) -> None:
        """Begin each conversation at its time, whether the server keeps up or not. The latency of a first turn counts
        from that time."""
        async with asyncio.TaskGroup() as turns:
            for conversation in conversations:
                due = first_turn(conversation)
                request, body = self._made(due)
                is_late = self._now() >= due.at_s
                await self._wait(due.at_s)
                turns.create_task(self._sent(due, request, body, due.at_s, turns))
                if is_late:
                    await asyncio.sleep(0)  # behind the timetable: still let answers in

    async def closed_loop(self, conversations: Iterable[Conversation], concurrency: int) -> None:
        """Have so many conversations at a time: each client begins its next one when its last has ended."""
        queue = iter(conversations)

        async def client() -> None:
            for conversation in queue:
                begun = msgspec.structs.replace(conversation, begins_s=self._now())
                async with asyncio.TaskGroup() as turns:
                    turns.create_task(self._later(first_turn(begun), turns))

        async with asyncio.TaskGroup() as clients:
            for _ in range(concurrency):
                clients.create_task(client())

    async def _later(self, due: DueTurn, turns: asyncio.TaskGroup) -> None:
        """Send a turn that depends on others. It is due when its body is made, so that making it is no latency of the
        server's."""
        await self._wait(due.at_s)
        request, body = self._made(due)
        await self._sent(due, request, body, self._now(), turns)

    async def _sent(
        self, due: DueTurn, request: BenchRequest, body: bytes, due_s: float, turns: asyncio.TaskGroup
    ) -> None:
        await self._send(request, body, due_s)
        for each in due.answered(self._now()):
            turns.create_task(self._later(each, turns))

    async def _wait(self, until_s: float) -> None:
        while (left := until_s - self._now()) > 0:  # noqa: ASYNC110  timers of whole milliseconds may fire early
            await asyncio.sleep(left)

    def _made(self, due: DueTurn) -> tuple[BenchRequest, bytes]:
        request = BenchRequest(
            index=next(self._numbers),
            segments=due.turn.segments,
            output_tokens=due.turn.output_tokens,
            session=due.conversation.session,
        )
        return request, self._encode(request)
