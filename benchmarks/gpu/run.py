"""A whole run on a GPU within a time budget: stages one after the other, each with a deadline of its own.

A stage that fails or takes too long is recorded and the next one begins. Results are written after each.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.timing import Timer
from kvarn.kernels.backend import Kernels
from kvarn.kernels.dispatch import kernels_for

THREADS = max(1, (os.cpu_count() or 1) - 2)
"""That compile."""
MOST_BYTES = 1_000_000
"""Of the file of results."""


class OverDeadlineError(Exception):
    """A stage took longer than it may."""


@dataclass
class Session:
    """What stages share."""

    dry: bool
    out: Path
    results: dict[str, Any] = field(default_factory=dict)
    read_gb_per_s: float = 1.0
    """The measured rate, against which all floors are reckoned."""
    shapes: list[str] = field(init=False)
    """Of decoders."""
    batches: list[int] = field(init=False)
    """Sequences that decode at once."""
    forms: list[str] = field(init=False)
    """Of weights, of the engine: `bf16` or a quantization."""
    rows: list[int] = field(init=False)
    """Of products that are timed."""
    only: str = ""
    """What the names of timed kernels contain."""

    def __post_init__(self) -> None:
        self.kernels: Kernels = kernels_for("triton", "cpu" if self.dry else "cuda")
        self.device = self.kernels.device.torch_device
        self.dtype = self.kernels.packer.preferred_dtype()
        self.timer = Timer(self.device)
        self.shapes = ["tiny"] if self.dry else ["8B", "0.6B", "1B"]
        self.batches = [1, 2] if self.dry else [1, 8, 32, 128, 256]
        self.forms = ["bf16", "fp8", "int4"]
        self.rows = [1] if self.dry else [1, 16, 32, 64, 128, 256, 2048]

    @property
    def most_rows(self) -> int:
        """Whose bits are compared."""
        return 3 if self.dry else 512

    @property
    def attentions(self) -> list[tuple[int, int, int]]:
        """Sequences, queries of each, context."""
        return (
            [(1, 1, 17)] if self.dry else [(1, 1, 1088), (32, 1, 1088), (256, 1, 1088), (1, 1, 32768), (1, 8192, 8192)]
        )

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens of a prompt and of an answer."""
        return (4, 3) if self.dry else (1024, 128)

    def compile_ahead(self, calls: Callable[[], None]) -> None:
        """Begin to compile what some calls will launch, in threads; they compute nothing here. Sequentially that takes
        longer than what is measured."""
        self.kernels.device.compile_ahead(calls, THREADS)

    def note(self, stage: str, found: Any) -> None:
        """Keep what a stage has so far, also where the run is ended before the stage is."""
        self.results[stage] = found
        self.write()

    def write(self) -> None:
        """The file of results. A stage whose results are too large is left out, and named."""
        text = json.dumps(self.results, indent=1)
        if len(text) > MOST_BYTES:
            largest = max(self.results, key=lambda stage: len(json.dumps(self.results[stage])))
            self.results[largest] = {"error": "left out: too large"}
            text = json.dumps(self.results, indent=1)
        self.out.write_text(text, encoding="utf-8")


Stage = tuple[str, float, Callable[[Session], Any]]
"""Name, its share of the time, and what it does."""


def run(session: Session, stages: list[Stage], minutes: float) -> None:
    """Run the stages. One may use what those before it left of their time."""
    ends, shares = time.monotonic() + 60 * minutes, sum(share for _, share, _ in stages)
    for name, share, stage in stages:
        began = time.monotonic()
        left = max(1.0, ends - began)
        seconds = left if session.dry else max(1.0, left * share / shares)  # a dry run measures nothing
        shares -= share
        print(f"== {name} ({seconds:.0f} s at most)", flush=True)
        try:
            with _deadline(seconds):
                session.note(name, stage(session))
        except Exception as error:
            session.note(f"{name} failed", {"error": str(error)[-500:], "where": traceback.format_exc()[-2000:]})
            print(f"   failed: {type(error).__name__}: {str(error)[-300:]}", flush=True)
        session.note(f"{name} seconds", round(time.monotonic() - began, 1))
        free_memory()
        session.write()
        print(_summary(session.results.get(name)), flush=True)
    session.kernels.device.stop_compiling()


def free_memory() -> None:
    """Give the device's memory back: an executor is a part of cycles, and its KV cache is most of that."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise OverDeadlineError(f"more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _summary(found: Any) -> str:
    if not isinstance(found, dict):
        return "   nothing"
    lines = [f"   {name}: {json.dumps(value)[:160]}" for name, value in found.items()]
    return "\n".join(lines[:60])
