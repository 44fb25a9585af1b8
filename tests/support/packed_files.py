"""Files of packed weights, which threads write."""

from __future__ import annotations

import threading

from kvarn.models.loading.packed_cache import WRITER


def writers() -> list[threading.Thread]:
    """Those that write now."""
    return [thread for thread in threading.enumerate() if thread.name == WRITER]


def finish_writes() -> None:
    """Wait for them."""
    for thread in writers():
        thread.join()
