"""Questions to one engine, and its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import cast

import msgspec

from kvarn.wire.questions import AnswerT, Ask, EngineAnswer, EngineQuestion, Question

_TIMEOUT_S = 10.0
"""An engine answers between two steps, of which one may take seconds on a slow machine."""


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

    def take(self, answered: EngineAnswer) -> None:
        waiting = self._waiting.get(answered.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answered.answer)

    def forget(self) -> None:
        """Nothing that was asked will be answered."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(b"")

    async def ask(self, question: EngineQuestion[AnswerT]) -> AnswerT | None:
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            if not self._send(Ask(number=number, gateway=self._gateway, question=cast("Question", question))):
                return None
            async with asyncio.timeout(_TIMEOUT_S):
                told = await waiting
        except TimeoutError:
            return None
        finally:
            del self._waiting[number]
        return cast("AnswerT", msgspec.msgpack.decode(told, type=question.answer_type)) if told else None
