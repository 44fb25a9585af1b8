"""The process that does sandboxed work: `python -m kvarn.sandbox.worker MODULE MEMORY_BYTES TIMEOUT_S`.

Started by `SandboxProcess`. The function `answer` of the module makes of each request its reply, both bytes. They are
read from standard input and written to standard output, each behind its length in 8 bytes; the first reply comes
without a request, once the module is imported. Before its reply the module may `tell` how far it is. The end of
standard input ends the process, as do the limits: the processor's time by a timer whose signal nothing in the process
handles, memory by the system.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import BinaryIO

OUT_OF_MEMORY = 3
"""Exit status; `SandboxProcess` knows it."""
TOLD = 1 << 63
"""Bit of a length: what follows is told before the reply."""


def tell(news: bytes) -> None:
    """Give news of the work to whoever asked for it, before the reply."""
    output = sys.stdout.buffer
    output.write((TOLD | len(news)).to_bytes(8, "big") + news)
    output.flush()


def main(arguments: list[str]) -> int:
    """Work until standard input ends."""
    module = importlib.import_module(arguments[0])
    _limit_memory(int(arguments[1]))
    timeout_s = float(arguments[2])
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    _write(replies, b"")
    while size := requests.read(8):
        signal.setitimer(signal.ITIMER_PROF, timeout_s)
        try:
            reply = module.answer(requests.read(int.from_bytes(size, "big")))
            signal.setitimer(signal.ITIMER_PROF, 0)  # before the reply is out: the next request may come with it
            _write(replies, reply)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)  # unwinding would need memory
    return 0


def _limit_memory(memory_bytes: int) -> None:
    with suppress(ValueError, OSError):  # macOS has no such limit; elsewhere the system's own is lower already
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _write(replies: BinaryIO, reply: bytes) -> None:
    replies.write(len(reply).to_bytes(8, "big"))
    replies.write(reply)
    replies.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
