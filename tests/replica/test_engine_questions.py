"""Questions whose answers are late, come in parts, or never come."""

from __future__ import annotations

import asyncio

import msgspec

from kvarn.replica.client.questions import EngineQuestions
from kvarn.wire.kv_map import NO_OWNER, KVMapPart
from kvarn.wire.messages import EngineStats, KVTierStats
from kvarn.wire.questions import Answered, Ask, AskKVMap


class Rig:
    """Questions to an engine that a test plays."""

    def __init__(self, *, is_there: bool = True) -> None:
        self.asked: asyncio.Queue[Ask] = asyncio.Queue()
        self.questions = EngineQuestions(self._send, gateway=3)
        self._is_there = is_there

    def _send(self, message: Ask) -> bool:
        self.asked.put_nowait(message)
        return self._is_there

    def answer(self, ask: Ask, answer: msgspec.Struct) -> None:
        self.questions.take(Answered(number=ask.number, answer=msgspec.msgpack.encode(answer)))


async def test_nothing_is_known_without_a_connection_or_where_it_is_lost():
    assert await Rig(is_there=False).questions.live(0) is None
    rig = Rig()
    waiting = asyncio.create_task(rig.questions.kv_path(1))
    ask = await rig.asked.get()
    assert ask.gateway == 3
    rig.questions.forget()
    assert await waiting is None
    rig.questions.take(Answered(number=ask.number, answer=b"late"))


async def test_the_parts_of_a_map_are_joined_with_one_table_of_tenants():
    rig = Rig()
    stats = EngineStats(kv_tiers={"disk": KVTierStats(capacity_bytes=9, used_bytes=4, blocks=2)})
    waiting = asyncio.create_task(rig.questions.kv_map(stats))
    parts = [
        KVMapPart(first=0, kv_blocks=5, states=b"\x02\x02\x00", owners=bytes([0, 1, NO_OWNER]), tenants=["x", "y"]),
        KVMapPart(first=3, kv_blocks=5, states=b"\x01\x01", owners=bytes([0, 1]), tenants=["z", "y"]),
    ]
    for part in parts:
        ask = await rig.asked.get()
        assert ask.question == AskKVMap(part.first)
        rig.answer(ask, part)
    told = await waiting
    assert told is not None
    assert (told.states, list(told.owners)) == (b"\x02\x02\x00\x01\x01", [0, 1, NO_OWNER, 2, 1])
    assert told.tenants == ["x", "y", "z"]
    assert [(tier.name, tier.blocks, tier.used_bytes) for tier in told.tiers] == [("disk", 2, 4)]
