"""Phases of an engine's start: reported as they begin, with their seconds for the model card."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from kvarn.replica.spec import ReportProgress


class Phases:
    """Reports the phases of a start and keeps the seconds of each."""

    def __init__(self, report: ReportProgress) -> None:
        self.seconds: dict[str, float] = {}
        self._report = report

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Report that a phase begins; keep its seconds when it ends."""
        began = time.monotonic()
        self._report(phase, 0.0)
        yield
        self.seconds[phase] = time.monotonic() - began
