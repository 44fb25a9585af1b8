"""Questions to one engine, and its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import TypeVar

import msgspec

from kvarn.wire.kv_map import OTHER_OWNERS, KVMap, KVMapPart, KVPath, KVTierBlocks
from kvarn.wire.messages import EngineStats
from kvarn.wire.questions import Answered, Ask, AskKVMap, AskKVPath, AskLiveSteps, AskTurnSteps, Question
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

    async def kv_map(self, stats: EngineStats) -> KVMap | None:
        """Ask for one part after the other, so that no step waits for the whole. `stats`: for the tiers."""
        joined, part = _Joined(), KVMapPart(first=0, kv_blocks=1, states=b"", owners=b"", tenants=[])
        while len(joined.states) < part.kv_blocks:
            answer = await self._ask(AskKVMap(len(joined.states)), KVMapPart)
            if answer is None or not answer.states:
                return None
            part = answer
            joined.add(part)
        tiers = [
            KVTierBlocks(name=name, blocks=tier.blocks, used_bytes=tier.used_bytes, capacity_bytes=tier.capacity_bytes)
            for name, tier in stats.kv_tiers.items()
        ]
        return KVMap(states=bytes(joined.states), owners=bytes(joined.owners), tenants=joined.tenants, tiers=tiers)

    def take(self, answered: Answered) -> None:
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


class _Joined:
    """Parts of a map with one table of tenants."""

    def __init__(self) -> None:
        self.states = bytearray()
        self.owners = bytearray()
        self.tenants: list[str] = []
        self._places: dict[str, int] = {}

    def add(self, part: KVMapPart) -> None:
        places = bytearray(range(256))
        for here, tenant in enumerate(part.tenants):
            places[here] = self._place(tenant)
        self.states += part.states
        self.owners += part.owners.translate(places)

    def _place(self, tenant: str) -> int:
        place = self._places.get(tenant)
        if place is None:
            if len(self.tenants) == OTHER_OWNERS:
                return OTHER_OWNERS
            place = self._places[tenant] = len(self.tenants)
            self.tenants.append(tenant)
        return place
