"""Messages and blocks between an engine that decodes and one that computes prompts for it, over a stream socket.

A frame is the lengths of a message and of what follows it (two unsigned 32-bit numbers, little-endian), the message in
MessagePack, and, after a `Block`, its record as `kvarn.kvstore.record` writes it. Who receives a block verifies all of
it. The process that computes draws a random generation when it starts, and names it in each frame: what an earlier one
has sent is never taken for its answer. Jobs are numbered by who asks, and no number is used twice.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Sequence

import msgspec

from kvarn.kvstore.errors import BadBlockError
from kvarn.wire.messages import Submit

VERSION = 1
_LENGTHS = struct.Struct("<II")
_MAX_MESSAGE = 64 * 1024 * 1024
STALL_S = 5.0
"""A frame that was begun must end within this time: else the connection is closed."""


class _Frame(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; the tag is the class's name."""


class Greeting(_Frame, frozen=True):
    """Who connects: both must hold the same weights in the same form."""

    version: int
    model: bytes
    block_bytes: int


class Welcome(_Frame, frozen=True):
    """The answer."""

    generation: bytes


class Ask(_Frame, frozen=True):
    """Compute a prompt and send these blocks of it."""

    job: int
    request: Submit
    names: list[bytes]
    scope: bytes


class Cancel(_Frame, frozen=True):
    """Nobody waits for a job any more."""

    job: int


class Forget(_Frame, frozen=True):
    """A tenant is deleted."""

    tenant: str


class Block(_Frame, frozen=True):
    """A block of a job; its record follows."""

    job: int
    generation: bytes
    index: int
    """Among the names that were asked for."""


class Done(_Frame, frozen=True):
    """No more blocks of a job will come."""

    job: int
    generation: bytes
    problem: str = ""


ToPrefill = Greeting | Ask | Cancel | Forget
FromPrefill = Welcome | Block | Done


class Channel:
    """One end of a connection. One thread receives; several may send."""

    def __init__(self, connected: socket.socket, receives: object, record_bytes: int) -> None:
        """`receives`: the union of messages that come. `record_bytes`: of a record; 0 where none come."""
        connected.settimeout(STALL_S)
        self._socket = connected
        self._arrivals = select.poll()  # select() takes no descriptor from 1,024 on
        self._arrivals.register(connected, select.POLLIN)
        self._lock = threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToPrefill | FromPrefill] = msgspec.msgpack.Decoder(receives)
        self._record_bytes = record_bytes

    def send(self, message: ToPrefill | FromPrefill, record: Sequence[bytes | memoryview] = ()) -> None:
        """Send a message and the parts of its record. Raises OSError where the other end does not take them."""
        body = self._encoder.encode(message)
        with self._lock:
            self._socket.sendall(_LENGTHS.pack(len(body), sum(map(len, record))) + body)
            for part in record:
                self._socket.sendall(part)

    def receive(self) -> tuple[ToPrefill | FromPrefill, memoryview]:
        """The next message, and its record; waits for as long as nothing comes.

        Raises:
            OSError: The connection broke, or a frame that was begun did not end in time.
            BadBlockError: What came is no frame.
        """
        self._arrivals.poll()
        body_bytes, record_bytes = _LENGTHS.unpack(self._read(_LENGTHS.size))
        if body_bytes > _MAX_MESSAGE or record_bytes not in (0, self._record_bytes):
            raise BadBlockError("frame")
        try:
            message = self._decoder.decode(self._read(body_bytes))
        except msgspec.DecodeError:
            raise BadBlockError("frame") from None
        return message, self._read(record_bytes)

    def close(self) -> None:
        """End the connection; whoever waits at it gets an OSError. Idempotent."""
        with contextlib.suppress(OSError):  # it may be over already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, count: int) -> memoryview:
        contents = memoryview(bytearray(count))
        rest = contents
        while rest:
            taken = self._socket.recv_into(rest)
            if not taken:
                raise ConnectionResetError("the other end closed the connection")
            rest = rest[taken:]
        return contents
