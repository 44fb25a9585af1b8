"""A child process ends with its parent, however that ends."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def exit_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, even if this one is stopped."""
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        logging.getLogger(__name__).warning("prctl failed; only a closed pipe shows that the parent has ended")


def exit_when_closed(descriptor: int) -> None:
    """Exit when the parent closes this pipe, or ends."""

    def wait() -> None:
        while os.read(descriptor, 4096):
            pass
        os._exit(0)

    threading.Thread(target=wait, name="kvarn-parent", daemon=True).start()
