"""Questions of gateway processes about what an engine does, answered between its steps.

An answer is msgpack of the type that its question names; it is decoded where it was asked for, and not before.
"""

from __future__ import annotations

import msgspec

from kvarn.wire.message import Message


class AskTurnSteps(msgspec.Struct, frozen=True, tag=True):
    """Steps of a turn; answered by `TurnSteps`. Not known: it is too long ago, or was never here."""

    request_id: str


class AskLiveSteps(msgspec.Struct, frozen=True, tag=True):
    """Steps after this one, and the present state; answered by `LiveSteps`."""

    after_step: int


class AskKVMap(msgspec.Struct, frozen=True, tag=True):
    """State of all blocks; answered by `KVMap`."""


class AskKVPath(msgspec.Struct, frozen=True, tag=True):
    """A block and its path; answered by `KVPath`."""

    block: int


Question = AskTurnSteps | AskLiveSteps | AskKVMap | AskKVPath


class Ask(Message, frozen=True, kw_only=True):
    """Tell a gateway process something; answered by `EngineAnswer`."""

    number: int  # of this gateway process's questions
    gateway: int
    question: Question


class EngineAnswer(Message, frozen=True, kw_only=True):
    number: int
    answer: bytes = b""  # empty: not available, or not known
