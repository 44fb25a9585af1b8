"""What is measured, one JSON line for each figure the moment it is known: an interrupted run loses nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from kvarn.bench.summary import Summary


class RecordsError(Exception):
    """The file of results cannot be used; the message says what to do."""


class Machine(msgspec.Struct, frozen=True, kw_only=True, tag="machine"):
    """Where and how a run was started; a resumed run adds another."""

    format: str = "kvarn-peers/2"
    started_at: str
    environment: dict[str, Any]
    settings: dict[str, Any]


class Installation(msgspec.Struct, frozen=True, kw_only=True, tag="installation"):
    """What an engine takes on the disk."""

    engine: str
    version: str
    size_bytes: int
    without_torch_bytes: int


class Session(msgspec.Struct, frozen=True, kw_only=True, tag="session"):
    """One start of one engine."""

    shape: str
    precision: str
    engine: str
    round: int
    first_answer_s: float
    """From the start of the process to the end of a first one-token answer."""
    peak_pss_bytes: int
    """Of all its processes; the KV cache it reserves included."""
    command: list[str]


class Measurement(msgspec.Struct, frozen=True, kw_only=True, tag="measurement"):
    """One workload against one engine."""

    shape: str
    precision: str
    engine: str
    round: int
    workload: str
    summary: Summary
    cut_after_s: float | None = None
    """The time limit, where it was not done by then: its figures are then of the requests that were."""
    load_before: float
    """Load average of the machine just before: above the engine's own threads, others were at work."""

    @property
    def key(self) -> tuple[str, str, str, int, str]:
        return self.shape, self.precision, self.engine, self.round, self.workload

    @property
    def whole(self) -> bool:
        """Every request was answered, in full length, in time."""
        summary = self.summary
        return self.cut_after_s is None and not (summary.failed or summary.unfinished or summary.wrong_length)


class Rate(msgspec.Struct, frozen=True, kw_only=True, tag="rate"):
    """The arrival rate of W6 for one class: the same for all engines and rounds."""

    shape: str
    precision: str
    requests_per_s: float


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """An engine, or one of its workloads, that could not be measured."""

    shape: str
    precision: str
    engine: str
    round: int
    workload: str | None = None
    """None where the engine did not start."""
    reason: str


Record = Machine | Installation | Session | Measurement | Rate | Failure


class Ledger:
    """The file: what it holds, and a way to add to it."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Open a new file, or with `resume` what is there; a last line that an interruption cut short is dropped.

        Raises:
            RecordsError: The file is there and not to be resumed, or holds something else.
        """
        self._path = path
        self.records: list[Record] = []
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
        elif not resume:
            raise RecordsError(f"{path} is there: add --resume to go on with it, or name another file with --results")
        else:
            text = path.read_bytes()
            path.write_bytes(text[: text.rfind(b"\n") + 1])
            self.records = read(path)

    def add(self, record: Record) -> None:
        """Keep a record, in memory and in the file."""
        self.records.append(record)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")


def read(path: Path) -> list[Record]:
    """All records of a file.

    Raises:
        RecordsError: It cannot be read or holds something else.
    """
    try:
        return [msgspec.json.decode(line, type=Record) for line in path.read_bytes().splitlines() if line.strip()]
    except (OSError, msgspec.MsgspecError) as error:
        raise RecordsError(f"{path} holds no results of this suite ({error})") from None


def measurements(records: Iterable[Record]) -> list[Measurement]:
    """The measurements among them; of several of one key the last."""
    return list({each.key: each for each in records if isinstance(each, Measurement)}.values())
