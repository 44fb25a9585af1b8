"""Phases of an engine's start: reported as they begin, with their seconds for the model card."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvarn.clock import SYSTEM_CLOCK
from kvarn.replica.spec import ReportProgress


class Phases:
    """Reports the phases of a start and keeps the seconds of each."""

    def __init__(self, report: ReportProgress) -> None:
        self.seconds: dict[str, float] = {}
        self._report = report

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Report that a phase begins; keep its seconds when it ends."""
        began = SYSTEM_CLOCK.now()
        self._report(phase, 0.0)
        yield
        self.seconds[phase] = SYSTEM_CLOCK.now() - began
