"""What every engine tells the suite: how it is prepared, how it is started, and what it cannot do here."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from benchmarks.models import Shape
from benchmarks.peers.workshop import Workshop

MODEL = "m"
"""Name of the model in every request."""

MAX_SEQS = 32
"""Requests that run at once at most: what the widest workload asks for."""

MAX_CONTEXT = 2048
"""Tokens of one sequence, where an engine wants to know; the longest request has 1,088."""

PREPARE = "python -m benchmarks.peers prepare"

KV_GIB = 3
"""KV cache each engine may have; the widest workload needs 1 GiB on the larger shape in 16 bits."""


class Precision(StrEnum):
    """Classes within which engines are compared."""

    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"


@dataclass(frozen=True)
class Case:
    """One model in one precision."""

    shape: Shape
    precision: Precision

    @property
    def label(self) -> str:
        """Names the case in folders and logs."""
        return f"{self.shape.name}-{self.precision}"


@dataclass(frozen=True)
class Launch:
    """How to start a server: it must answer `POST /v1/completions` on `port` of the loopback interface."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    """Added to this process's own."""
    model: str = MODEL
    folder: Path | None = None
    """Working folder of the process."""


@dataclass(frozen=True)
class Installed:
    """What an engine takes on the disk, without models."""

    version: str
    size_bytes: int
    without_torch_bytes: int
    """Without torch and without what only torch needs."""


class Engine(Protocol):
    """One engine under test."""

    @property
    def name(self) -> str:
        """Short name: on the command line, in records, as its folder."""

    @property
    def title(self) -> str:
        """Name in tables."""

    def precision_note(self, precision: Precision) -> str | None:
        """What the engine means by a precision; None where it does not offer it."""

    def install(self, shop: Workshop) -> None:
        """Make its environment; returns at once where it is there. Raises PrepareError."""

    def convert(self, shop: Workshop, case: Case) -> None:
        """Make its own copy of the model; returns at once where it is there. Raises PrepareError."""

    def obstacle(self, shop: Workshop, case: Case) -> str | None:
        """Why it cannot run a case on this machine, or None. Cheap."""

    def launch(self, shop: Workshop, case: Case, port: int) -> Launch:
        """The command that serves a case."""

    def installed(self, shop: Workshop) -> Installed:
        """Version and size. Raises PrepareError where it is not installed."""
