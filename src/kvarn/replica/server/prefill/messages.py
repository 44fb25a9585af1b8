"""Messages between an engine that decodes (a DEALER socket) and one that computes prompts for it (a ROUTER socket).

    Greeting ──▶                      Ask ──▶                      Received ──▶
             ◀── Welcome | Rejected       ◀── Block, ..., Done

A `Block` is followed by two frames: the header and the contents of its record, as `kvarn.kvstore.record` writes it. Its
receiver verifies all of it and answers `Received`: only so many are on their way at a time. The process that computes
draws a random generation when it starts and names it in each message: what an earlier one has sent is never taken for
its answer. The engine that asks numbers its jobs, each once.
"""

from __future__ import annotations

import msgspec
import zmq

from kvarn.wire.messages import Submit

VERSION = 3
_PING_MS, _SILENT_MS = 2000, 10_000
"""The other end is asked whether it is there; one that says nothing for so long is not."""
_MAX_FRAME_BYTES = 64 * 1024 * 1024
_RECONNECT_MS = 100


class _Frame(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; the tag is the class's name."""


class Greeting(_Frame, frozen=True):
    """First message of an engine that asks: both must hold the same weights in the same form."""

    version: int
    model: bytes
    block_bytes: int


class Welcome(_Frame, frozen=True):
    """The answer to a greeting. It may come again, to find out whether the other engine still answers."""

    generation: bytes


class Rejected(_Frame, frozen=True):
    reason: str


class Ask(_Frame, frozen=True):
    job: int
    request: Submit
    names: list[bytes]
    scope: bytes


class Cancel(_Frame, frozen=True):
    job: int


class Received(_Frame, frozen=True):
    """Blocks that have come, used or not."""

    count: int


class Forget(_Frame, frozen=True):
    tenant: str


class Block(_Frame, frozen=True):
    """A block of a job; its record follows."""

    job: int
    generation: bytes
    index: int
    """Place among the names that were asked for."""


class Done(_Frame, frozen=True):
    """No more blocks of a job will come."""

    job: int
    generation: bytes
    problem: str = ""


ToPrefill = Greeting | Ask | Cancel | Received | Forget
FromPrefill = Welcome | Rejected | Block | Done


def open_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """A socket of one end, neither bound nor connected. It never blocks, and notices a silent peer."""
    opened = context.socket(kind)
    opened.set_hwm(0)
    opened.setsockopt(zmq.LINGER, 0)
    opened.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
    opened.setsockopt(zmq.HEARTBEAT_IVL, _PING_MS)
    opened.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENT_MS)
    opened.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    return opened
