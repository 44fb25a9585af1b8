"""Lines of another program's output, each within a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable


class Lines:
    """Reads lines in a thread."""

    def __init__(self, output: Iterable[str]) -> None:
        self._lines = queue.Queue[str]()
        threading.Thread(target=self._read, args=(output,), daemon=True).start()

    def next(self, within_s: float = 180.0) -> str:
        """The next line; empty: the output has ended. Fails where that takes too long."""
        try:
            return self._lines.get(timeout=within_s)
        except queue.Empty:
            raise AssertionError(f"no line within {within_s:g} s") from None

    def _read(self, output: Iterable[str]) -> None:
        for line in output:
            self._lines.put(line)
        self._lines.put("")
