"""Questions of gateway processes about what an engine does, answered between its steps.

An answer is msgpack of its question's `answer_type`; it is decoded where it was asked for, and not before.
"""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

import msgspec

from kvarn.wire.kv_map import KVMap, KVPath
from kvarn.wire.message import Message
from kvarn.wire.step_records import LiveSteps, TurnSteps

AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)


class EngineQuestion(msgspec.Struct, Generic[AnswerT], frozen=True, tag=True):
    answer_type: ClassVar[type[msgspec.Struct]]


class AskTurnSteps(EngineQuestion[TurnSteps], frozen=True):
    """Steps of a turn by its id in the engine. Not known: it is too long ago, or was never here."""

    request_id: str
    answer_type = TurnSteps


class AskLiveSteps(EngineQuestion[LiveSteps], frozen=True):
    """Steps after this one, and the present state. A step whose number is below that of one told before belongs to
    another engine process."""

    after_step: int
    answer_type = LiveSteps


class AskKVMap(EngineQuestion[KVMap], frozen=True):
    """State of all blocks."""

    answer_type = KVMap


class AskKVPath(EngineQuestion[KVPath], frozen=True):
    """A block, and what stands before it in the prefix cache. Not known: there is no such block."""

    block: int
    answer_type = KVPath


Question = AskTurnSteps | AskLiveSteps | AskKVMap | AskKVPath


class Ask(Message, frozen=True, kw_only=True):
    """Tell a gateway process something; answered by `EngineAnswer`."""

    number: int  # of this gateway process's questions
    gateway: int
    question: Question


class EngineAnswer(Message, frozen=True, kw_only=True):
    number: int
    answer: bytes = b""  # empty: not available, or not known
