"""What a gateway knows of usage before the database does, in a directory of its own under `data_dir`.

    usage/<gateway>.lock        locked (flock) for as long as the gateway lives
    usage/<gateway>/slots-…     requests in flight, mapped into memory
    usage/<gateway>/spool-…     finished events, not yet in the database

A request has a slot from the moment it is taken until its event is in the spool; the event stays there until the
database has it. Whatever a gateway leaves behind is found by the next one that starts on this machine, or by another
that lives.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import uuid
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvarn.metering.event import InFlight, settle
from kvarn.metering.prices import PriceBook
from kvarn.metering.slots import MAX_IDENTITY_BYTES, Slot, SlotFile, read_slots
from kvarn.metering.spool import Spool, SpoolFullError
from kvarn.store.ledger import LedgerEvent

MAX_UNWRITTEN = 20_000
"""Events kept in memory where neither the database nor the disk takes them."""

_LOCK = ".lock"

_log = logging.getLogger("kvarn.metering")

_encoder = msgspec.msgpack.Encoder()


class Journal:
    """The journal of a living gateway. Used from one thread.

    Args:
        root: Directory of all journals of this machine.
        max_spool_bytes: Size of the spool at most.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, root: Path, max_spool_bytes: int = 1 << 30) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.name, self._lock = _new_lock(root)
        self._directory = root / self.name
        self._directory.mkdir(mode=0o700)  # after the lock: a directory without one belonged to a dead gateway
        self.spool = Spool(self._directory, max_spool_bytes)
        self.unwritten: deque[tuple[LedgerEvent, Slot | None]] = deque()
        """Events for which the disk had no room, with the slots that keep them meanwhile."""
        self.dropped = 0
        """Events that found no room anywhere; their content is in the log."""
        self._files: list[SlotFile] = []
        self._warned = False

    def begin(self, request: InFlight, received: float) -> Slot | None:
        """Note that a request was taken, at monotonic second `received`. None: there is no room for the note; the
        request goes on, and would be lost with this process."""
        identity = _encoder.encode(request)
        try:
            file = self._file_with_room()
        except OSError as error:
            self._warn("usage of requests in flight cannot be kept on disk", error)
            return None
        if len(identity) > MAX_IDENTITY_BYTES:
            self._warn("a request's names are too long for its slot", len(identity))
            return None
        return file.take(identity, received)

    def finish(self, slot: Slot | None, event: LedgerEvent) -> None:
        """A request has ended."""
        try:
            self.spool.append(encode_event(event))
        except (OSError, SpoolFullError) as error:
            self._warn("finished usage events cannot be kept on disk and wait in memory", error)
            if len(self.unwritten) >= MAX_UNWRITTEN:
                self.dropped += 1
                _log.error("usage event dropped: neither the database nor the disk takes it", extra=_as_fields(event))
            else:
                self.unwritten.append((event, slot))
            return
        if slot is not None:
            slot.free()

    def close(self) -> None:
        """Leave: nothing stays behind if all of it is in the database; else the next start finds it."""
        while self.unwritten:
            event, slot = self.unwritten.popleft()
            try:
                self.spool.append(encode_event(event))
            except (OSError, SpoolFullError):
                continue  # its slot, where it has one, says the same
            if slot is not None:
                slot.free()
        in_flight = any(file.in_use for file in self._files)
        for file in self._files:
            file.close()
        self.spool.close()
        if not in_flight and not self.spool.has_unread:
            _remove(self._directory)
        os.close(self._lock)

    def _file_with_room(self) -> SlotFile:
        for file in reversed(self._files):
            if file.free:
                return file
        file = SlotFile(self._directory / f"slots-{len(self._files):04d}")
        self._files.append(file)
        return file

    def _warn(self, what: str, why: object) -> None:
        if not self._warned:
            _log.error("%s: %r", what, why)
        self._warned = True


class DeadJournal:
    """What a gateway left behind; locked while this process takes it over."""

    def __init__(self, directory: Path, lock: int) -> None:
        self.name = directory.name
        self._directory = directory
        self._lock = lock
        self.spool = Spool(directory)

    def lost(self, prices: PriceBook, currency: str) -> list[LedgerEvent]:
        """Its requests in flight, as events of outcome `lost`.

        To be written after the events of its spool, among which may be one of the same request: the first counts.
        """
        paths = sorted(self._directory.glob("slots-*"))
        return [settle(*found, prices, currency) for path in paths for found in read_slots(path)]

    def remove(self) -> None:
        """All of it is in the database."""
        self.spool.close()
        _remove(self._directory)
        os.close(self._lock)

    def release(self) -> None:
        """Leave it to another."""
        self.spool.close()
        os.close(self._lock)


def dead_journals(root: Path) -> Iterator[DeadJournal]:
    """The journals of gateways that are gone, locked. Locks without a journal are cleared away."""
    for path in sorted(root.glob(f"*{_LOCK}")):
        try:
            lock = _lock(path)
        except BlockingIOError:
            continue
        directory = path.with_suffix("")
        if directory.is_dir():
            yield DeadJournal(directory, lock)
        else:  # its gateway died before it made a journal, or after it had removed it
            path.unlink(missing_ok=True)
            os.close(lock)


def encode_event(event: LedgerEvent) -> bytes:
    """An event as it stands in the spool."""
    return _encoder.encode(event)


def decode_event(record: bytes) -> LedgerEvent:
    """The event of a record."""
    return msgspec.msgpack.decode(record, type=LedgerEvent)


def _as_fields(event: LedgerEvent) -> dict[str, object]:
    return {f"event_{name}": value for name, value in msgspec.structs.asdict(event).items()}


def _new_lock(root: Path) -> tuple[str, int]:
    """A name that no gateway has had, and its locked file."""
    while True:
        name = uuid.uuid4().hex
        path = root / f"{name}{_LOCK}"
        try:
            descriptor = _lock(path)
        except BlockingIOError:  # another gateway took it for a dead one's before it was locked
            continue
        if path.exists():
            return name, descriptor
        os.close(descriptor)


def _lock(path: Path) -> int:
    """Lock a file that stands for a gateway; raises BlockingIOError where that lives."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


def _remove(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.with_name(f"{directory.name}{_LOCK}").unlink(missing_ok=True)
