"""Questions whose answers are late, or never come."""

from __future__ import annotations

import asyncio

import msgspec

from kvarn.replica.client.questions import EngineQuestions
from kvarn.wire.kv_map import KVPath
from kvarn.wire.questions import Ask, AskKVPath, AskLiveSteps, EngineAnswer


class Rig:
    """Questions to an engine that a test plays."""

    def __init__(self, *, is_there: bool = True) -> None:
        self.asked: asyncio.Queue[Ask] = asyncio.Queue()
        self.questions = EngineQuestions(self._send, gateway=3)
        self._is_there = is_there

    def _send(self, message: Ask) -> bool:
        self.asked.put_nowait(message)
        return self._is_there


async def test_nothing_is_known_without_a_connection_or_where_it_is_lost_and_late_answers_are_no_others():
    assert await Rig(is_there=False).questions.ask(AskLiveSteps(0)) is None
    rig = Rig()
    waiting = asyncio.create_task(rig.questions.ask(AskKVPath(1)))
    ask = await rig.asked.get()
    assert ask.gateway == 3
    rig.questions.forget()
    assert await waiting is None
    asking = asyncio.create_task(rig.questions.ask(AskKVPath(2)))
    again = await rig.asked.get()
    rig.questions.take(EngineAnswer(number=ask.number, answer=b"late"))
    path = KVPath(block=2, tenant="acme", adapter="", is_adapter=False, depth=0, path=[], request_ids=[])
    rig.questions.take(EngineAnswer(number=again.number, answer=msgspec.msgpack.encode(path)))
    assert await asking == path
