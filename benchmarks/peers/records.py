"""What is measured, one JSON line for each figure the moment it is known: an interrupted run loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from kvarn.bench.summary import Summary

FORMAT = "kvarn-peers/1"


class RecordsError(Exception):
    """The file of results cannot be used; the message says what to do."""


class Machine(msgspec.Struct, frozen=True, kw_only=True, tag="machine"):
    """Where and how a run was started; a resumed run adds another."""

    format: str = FORMAT
    started_at: str
    environment: dict[str, Any]
    settings: dict[str, Any]


class Installation(msgspec.Struct, frozen=True, kw_only=True, tag="installation"):
    """What an engine takes on the disk."""

    engine: str
    version: str
    size_bytes: int
    without_torch_bytes: int


class Limits(msgspec.Struct, frozen=True, kw_only=True, tag="limits"):
    """What this machine can do at most."""

    bytes_per_s: float
    """Memory read on all cores."""
    operations_per_s: dict[str, float]
    """By precision, a multiply-add counts as two."""


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """An engine has started."""

    shape: str
    precision: str
    engine: str
    round: int
    first_answer_s: float
    """From the start of the process to the end of a first one-token answer."""
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
    smoke: bool = False
    load_before: float
    """Load average of the machine just before: above the engine's own threads, others were at work."""

    @property
    def key(self) -> tuple[str, str, str, int, str]:
        """What was measured, in which round."""
        return self.shape, self.precision, self.engine, self.round, self.workload

    @property
    def whole(self) -> bool:
        """Every request was answered, in full length, in time."""
        summary = self.summary
        return self.cut_after_s is None and not (summary.failed or summary.unfinished or summary.wrong_length)


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """An engine's session has ended."""

    shape: str
    precision: str
    engine: str
    round: int
    peak_pss_bytes: int
    """Of all its processes; the KV cache it reserves included."""


class Rate(msgspec.Struct, frozen=True, kw_only=True, tag="rate"):
    """The arrival rate of W6 for one class: the same for all engines and rounds."""

    shape: str
    precision: str
    requests_per_s: float
    because: str


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """An engine, or one of its workloads, that could not be measured."""

    shape: str
    precision: str
    engine: str
    round: int
    workload: str | None = None
    """None where the engine did not start."""
    reason: str


Record = Machine | Installation | Limits | Start | Measurement | Stop | Rate | Failure
Keep = Callable[[Record], None]


class Ledger:
    """The file: what it holds, and a way to add to it."""

    def __init__(self, path: Path, records: list[Record]) -> None:
        self.records = records
        self._path = path

    @classmethod
    def open(cls, path: Path, *, resume: bool) -> Ledger:
        """A new file, or with `resume` what is there; a last line that an interruption cut short is dropped.

        Raises:
            RecordsError: The file is there and not to be resumed, or holds something else.
        """
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            return cls(path, [])
        if not resume:
            raise RecordsError(f"{path} is there: add --resume to go on with it, or name another file with --results")
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:
            path.write_bytes(whole)
        return cls(path, read(path))

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
        lines = path.read_bytes().splitlines()
        decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
        return [decoder.decode(line) for line in lines if line.strip()]
    except (OSError, msgspec.MsgspecError) as error:
        raise RecordsError(f"{path} holds no results of this suite ({error})") from None


def measurements(records: Iterable[Record]) -> list[Measurement]:
    """The measurements among them; of several of one key the last."""
    latest = {each.key: each for each in records if isinstance(each, Measurement)}
    return list(latest.values())


def all_answered(records: Iterable[Record]) -> bool:
    """Whether something was measured, nothing failed, and every request had its whole answer."""
    found = list(records)
    measured = measurements(found)
    return bool(measured) and all(each.whole for each in measured) and not any(isinstance(r, Failure) for r in found)
