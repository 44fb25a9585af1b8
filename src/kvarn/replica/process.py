"""The engine process: `python -m kvarn.replica.process [MODULE]`, started by the gateway and never by hand.

It imports MODULE (which brings torch: most of the start) while its parent is still making up its mind, then reads from
standard input what it is to become. That stream stays open for life: its end means that the parent is gone, and the
process with it.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_STDIN = 0


def main(arguments: list[str]) -> int:
    """Become the engine that the parent asks for; returns the exit status."""
    began = time.monotonic()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    # Imports allocate a few hundred thousand objects and free almost none: collecting while they run is a fifth of
    # their time spent for nothing. Frozen afterwards, they are never looked at again.
    gc.disable()
    from kvarn.replica.imports import defer_unused_modules

    defer_unused_modules()
    for module in arguments:
        importlib.import_module(module)
    from kvarn.replica.spec import read_handover

    imported = time.monotonic()
    handover = read_handover(_STDIN)
    if handover is None:
        return 0
    received = time.monotonic()
    threading.Thread(target=_exit_when_parent_closes_stdin, name="kvarn-lifeline", daemon=True).start()
    from kvarn.replica.run import run_engine

    phases = {
        "interpreter": began - handover.spawned_at,
        "import": imported - began,
        "wait for the configuration": received - imported,
    }
    return run_engine(handover, phases)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, however it ends, and even if this one is stopped."""
    if sys.platform != "linux":
        return
    import ctypes

    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        logging.getLogger(__name__).warning("prctl failed; only a closed pipe tells when the parent ends")


def _exit_when_parent_closes_stdin() -> None:
    while os.read(_STDIN, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
