"""Answers to questions about what a decoder's engine does, between its steps."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from kvarn.engine.core import EngineCore
from kvarn.engine.live import live_steps, turn_steps
from kvarn.engine.step_reports import FloorOf
from kvarn.replica.server.block_map import block_map, block_path
from kvarn.wire.kv_map import KVMap, KVPath
from kvarn.wire.questions import AskKVMap, AskKVPath, AskLiveSteps, AskTurnSteps, Question
from kvarn.wire.step_records import LiveSteps, StepTurn, TurnSteps

log = logging.getLogger(__name__)

Answer = TurnSteps | LiveSteps | KVMap | KVPath | None


class EngineAnswers:
    """Reads an engine and changes nothing.

    Args:
        floor_of: The least seconds of a step.
        name_of: Name of an adapter by its digest, which is how the engine knows it.
    """

    def __init__(
        self, core: EngineCore, floor_of: FloorOf, name_of: Callable[[str], str], clock: Callable[[], float]
    ) -> None:
        self._core = core
        self._floor_of = floor_of
        self._name_of = name_of
        self._clock = clock

    def answer(self, question: Question) -> bytes:
        """An answer in msgpack; empty where there is none. A question never ends the engine: an error is logged."""
        try:
            found = self._find(question)
        except Exception:
            log.exception("a question about the engine cannot be answered: %s", question)
            return b""
        return b"" if found is None else msgspec.msgpack.encode(found)

    def _find(self, question: Question) -> Answer:
        core, now = self._core, self._clock()
        scheduler = core.scheduler
        match question:
            case AskTurnSteps():
                steps = turn_steps(core.step_log, scheduler, question.request_id, now, self._floor_of)
                return None if steps is None else msgspec.structs.replace(steps, turns=self._named(steps.turns))
            case AskLiveSteps():
                live = live_steps(scheduler, core.step_log, core.preparing, question.after_step, now, self._floor_of)
                return msgspec.structs.replace(live, turns=self._named(live.turns))
            case AskKVMap():
                return block_map(scheduler.memory, scheduler.running, now)
            case AskKVPath():
                path = block_path(scheduler.memory, scheduler.running, question.block)
                if path is None or not path.adapter:
                    return path
                return msgspec.structs.replace(path, adapter=self._name_of(path.adapter))

    def _named(self, turns: list[StepTurn]) -> list[StepTurn]:
        return [
            msgspec.structs.replace(turn, adapter=self._name_of(turn.adapter)) if turn.adapter else turn
            for turn in turns
        ]
