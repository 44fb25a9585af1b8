"""Requests in flight, in a file mapped into memory.

A store into a shared mapping lands in the kernel's page cache: it outlives the process, however that ends. So the
counts of a request are there before its client hears of the tokens, at the price of a few stores and no system call.

A slot is a page. Its first words (64 bits, each stored whole) are

    0  length of the identity << 32 | its CRC-32; 0: the slot is free. Written last, so a slot is whole or free
    1  prompt tokens         2  cached tokens        3  output tokens
    4  microseconds from start to first token, plus one; 0: none yet
    5  microseconds since 1970 of the last change

and from byte 64 on follows the identity (`InFlight` in msgpack).
"""

from __future__ import annotations

import logging
import mmap
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvarn.metering.event import LOST, InFlight, Measured, Tokens

SLOT_BYTES = 4096
SLOTS_PER_FILE = 256
MAX_IDENTITY_BYTES = SLOT_BYTES - 64

_log = logging.getLogger("kvarn.metering")

_WORDS_PER_SLOT = SLOT_BYTES // 8
_STATE, _PROMPT, _CACHED, _OUTPUT, _FIRST, _CHANGED = range(6)


class Slot:
    """One request's place. `watch` is for `Tally.watch`."""

    __slots__ = ("_at", "_file", "_words", "received")

    def __init__(self, file: SlotFile, at: int, received: float) -> None:
        self._file = file
        self._words = file.words
        self._at = at * _WORDS_PER_SLOT
        self.received = received

    def watch(self, tokens: Tokens) -> None:
        """Note the counts; they only grow, so a moment between two stores is a moment a little earlier."""
        words, at = self._words, self._at
        words[at + _PROMPT] = tokens.prompt_tokens
        words[at + _CACHED] = tokens.cached_tokens
        words[at + _OUTPUT] = tokens.completion_tokens
        if tokens.first_token is not None and not words[at + _FIRST]:
            words[at + _FIRST] = max(0, int(1e6 * (tokens.first_token - self.received))) + 1
        words[at + _CHANGED] = time.time_ns() // 1000

    def free(self) -> None:
        """The request is in the spool, or did nothing."""
        self._words[self._at + _STATE] = 0
        self._file.free.append(self._at // _WORDS_PER_SLOT)


class SlotFile:
    """A file of `SLOTS_PER_FILE` slots, all free.

    Raises:
        OSError: There is no room for it. The room is taken at once: a mapped page without a block would end the
            process.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, SLOTS_PER_FILE * SLOT_BYTES)
            self._memory = mmap.mmap(descriptor, SLOTS_PER_FILE * SLOT_BYTES)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        self.words = memoryview(self._memory).cast("Q")
        self.free = list(reversed(range(SLOTS_PER_FILE)))

    def take(self, identity: bytes, received: float) -> Slot:
        """Write an identity of at most `MAX_IDENTITY_BYTES` into a free slot; one must be `free`."""
        number = self.free.pop()
        start, words = number * SLOT_BYTES, number * _WORDS_PER_SLOT
        self._memory[start + 64 : start + 64 + len(identity)] = identity
        for word in range(_PROMPT, _CHANGED + 1):
            self.words[words + word] = 0
        self.words[words + _STATE] = len(identity) << 32 | zlib.crc32(identity)
        return Slot(self, number, received)

    @property
    def in_use(self) -> int:
        """Slots that are taken."""
        return SLOTS_PER_FILE - len(self.free)

    def close(self) -> None:
        """Unmap it."""
        self.words.release()
        self._memory.close()


def read_slots(path: Path) -> Iterator[tuple[InFlight, Measured]]:
    """Requests of a dead gateway's file that the engine had been asked for."""
    content = memoryview(path.read_bytes())
    for start in range(0, len(content) - SLOT_BYTES + 1, SLOT_BYTES):
        state, prompt, cached, output, first, changed = content[start : start + 48].cast("Q")
        identity = content[start + 64 : start + 64 + (state >> 32)]
        if not state or not prompt or zlib.crc32(identity) != state & 0xFFFFFFFF:
            continue
        try:
            request = msgspec.msgpack.decode(identity, type=InFlight)
        except msgspec.DecodeError:
            _log.error("a request in flight cannot be read: %s at %d: %s", path, start, bytes(identity).hex())
            continue
        ttft = (first - 1) / 1e6 if first else None
        yield request, Measured(LOST, prompt, cached, output, max(changed / 1e6, request.started), ttft)
