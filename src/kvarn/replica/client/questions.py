"""Questions to one engine, and its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import TypeVar

import msgspec

from kvarn.wire.kv_map import KVMap, KVPath
from kvarn.wire.questions import Ask, AskKVMap, AskKVPath, AskLiveSteps, AskTurnSteps, EngineAnswer, Question
from kvarn.wire.step_records import LiveSteps, TurnSteps

_TIMEOUT_S = 10.0
"""An engine answers between two steps, of which one may take seconds on a slow machine."""

AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)


class EngineQuestions:
    """Asks, and waits for the answer. None: the engine is not there, does not answer, or does not know.

    Args:
        send: Sends a message to the engine; False where there is no connection to it.
        gateway: Number of this gateway process.
    """

    def __init__(self, send: Callable[[Ask], bool], gateway: int) -> None:
        self._send = send
        self._gateway = gateway
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    async def turn_steps(self, request_id: str) -> TurnSteps | None:
        return await self._ask(AskTurnSteps(request_id), TurnSteps)

    async def live(self, after_step: int) -> LiveSteps | None:
        return await self._ask(AskLiveSteps(after_step), LiveSteps)

    async def kv_path(self, block: int) -> KVPath | None:
        return await self._ask(AskKVPath(block), KVPath)

    async def kv_map(self) -> KVMap | None:
        return await self._ask(AskKVMap(), KVMap)

    def take(self, answered: EngineAnswer) -> None:
        waiting = self._waiting.get(answered.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answered.answer)

    def forget(self) -> None:
        """Nothing that was asked will be answered."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(b"")

    async def _ask(self, question: Question, answer: type[AnswerT]) -> AnswerT | None:
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            if not self._send(Ask(number=number, gateway=self._gateway, question=question)):
                return None
            async with asyncio.timeout(_TIMEOUT_S):
                told = await waiting
        except TimeoutError:
            return None
        finally:
            del self._waiting[number]
        return msgspec.msgpack.decode(told, type=answer) if told else None
