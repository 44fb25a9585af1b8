"""Messages with their length before them, over the pipes between the ranks of a model."""

from __future__ import annotations

import struct
from typing import IO

from kvarn.worker.ranks.collectives import RankLostError

_LENGTH = struct.Struct("<Q")


def send_frame(pipe: IO[bytes], message: bytes) -> None:
    try:
        pipe.write(_LENGTH.pack(len(message)) + message)
        pipe.flush()
    except (BrokenPipeError, ValueError) as error:
        raise RankLostError("another rank of this model has ended") from error


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """The next message; None where the pipe was closed."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    message = pipe.read(length)
    return message if len(message) == length else None
