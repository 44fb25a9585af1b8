"""Write-ahead log of usage that is not yet in the database: in SQLite, under `data_dir`.

    usage/<gateway>.db      in_flight: requests by slot; finished: events that are not in the database yet
    usage/<gateway>.counts  tokens of the requests in flight by slot, mapped into memory

A commit (WAL mode) is in the kernel's page cache when it returns, and so is a store into a shared mapping: both outlive
the process, however it ends. Token counts go into the mapping since they change with every token, and a commit costs
ten times as much. SQLite locks the file for as long as its gateway lives (exclusive locking mode); a file without a
lock was left by a gateway that died, and another on this machine takes it over. No other code of the process may open
and close the file: closing it would end the lock.
"""

from __future__ import annotations

import logging
import mmap
import os
import sqlite3
import struct
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from kvarn.clock import SYSTEM_CLOCK
from kvarn.metering.event import LOST, InFlight, Measured, Tokens, make_event
from kvarn.metering.prices import PriceBook
from kvarn.store.ledger import LedgerEvent

MAX_UNWRITTEN = 20_000
"""Events kept in memory where neither the database nor the disk takes them."""
FIRST_SLOTS = 256
"""Doubled whenever all are in use."""

_COUNTS = struct.Struct("@5q")
"""Numbers of a slot: prompt, cached and output tokens; microseconds from start to first token, plus one (0: none yet);
microseconds since 1970 of the last change. Without prompt tokens the slot is free, or the engine has not been asked.
Each number is stored whole, and the tokens only grow: half an update is a moment a little earlier."""
_FREE = _COUNTS.pack(0, 0, 0, 0, 0)
_SETTINGS = "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
_TABLES = """
CREATE TABLE IF NOT EXISTS in_flight (slot INTEGER PRIMARY KEY, request BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS finished (number INTEGER PRIMARY KEY, event BLOB NOT NULL);
"""

_log = logging.getLogger("kvarn.metering")
_encoder = msgspec.msgpack.Encoder()


class JournalFullError(Exception):
    """The journal has grown to its bound."""


class Slot:
    __slots__ = ("_first_us", "_memory", "_offset", "_received", "number")

    def __init__(self, memory: mmap.mmap, number: int, received: float) -> None:
        self.number = number
        self._memory = memory
        self._offset = number * _COUNTS.size
        self._received = received
        self._first_us = 0

    def watch(self, tokens: Tokens) -> None:
        if not self._first_us and tokens.first_token is not None:
            self._first_us = max(0, int(1e6 * (tokens.first_token - self._received))) + 1
        counts = tokens.prompt_tokens, tokens.cached_tokens, tokens.completion_tokens
        _COUNTS.pack_into(self._memory, self._offset, *counts, self._first_us, int(SYSTEM_CLOCK.time() * 1e6))

    def clear(self) -> None:
        """The request has been written as an event, or did nothing."""
        self._memory[self._offset : self._offset + _COUNTS.size] = _FREE


class Journal:
    """The file of one gateway, opened and locked.

    Raises:
        BlockingIOError: Its gateway lives.
        sqlite3.Error: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._counts_path = path.with_suffix(".counts")
        self._database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._database.executescript(_SETTINGS)
            self._database.executescript(_TABLES)
            query = "SELECT count(*), coalesce(sum(length(event)), 0) FROM finished"
            self.waiting, self.size = self._database.execute(query).fetchone()
        except sqlite3.Error as error:
            self._database.close()
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise BlockingIOError(f"{path} is in use") from None
            raise

    def append(self, record: bytes) -> None:
        """Add a finished event, encoded. Raises sqlite3.Error where the disk has no room."""
        self._database.execute("INSERT INTO finished (event) VALUES (?)", (record,))
        self.waiting += 1
        self.size += len(record)

    def read(self, limit: int) -> list[tuple[int, bytes]]:
        """The oldest finished events with their numbers; the same again until they are deleted."""
        query = "SELECT number, event FROM finished ORDER BY number LIMIT ?"
        return self._database.execute(query, (limit,)).fetchall()

    def delete(self, records: list[tuple[int, bytes]]) -> None:
        """Delete the records read last: they are in the database."""
        self._database.execute("DELETE FROM finished WHERE number <= ?", (records[-1][0],))
        self.waiting -= len(records)
        self.size -= sum(len(record) for _, record in records)

    def lost(self, prices: PriceBook, currency: str) -> list[LedgerEvent]:
        """The requests in flight of a dead gateway, as events of outcome `lost`: to be written after its finished
        events, of which one may be of the same request (the first counts)."""
        counts = self._counts_path.read_bytes() if self._counts_path.exists() else b""
        found = []
        for number, request in self._database.execute("SELECT slot, request FROM in_flight ORDER BY slot"):
            prompt, cached, output, first, changed = _COUNTS.unpack(
                counts[number * _COUNTS.size : (number + 1) * _COUNTS.size] or _FREE
            )
            if not prompt:
                continue
            try:
                in_flight = msgspec.msgpack.decode(request, type=InFlight)
            except msgspec.DecodeError as error:
                _log.error("a request in flight cannot be read: %s, slot %d: %s", error, number, request.hex())
                continue
            ttft_s = (first - 1) / 1e6 if first else None
            measured = Measured(LOST, prompt, cached, output, max(changed / 1e6, in_flight.started), ttft_s)
            found.append(make_event(in_flight, measured, prices, currency))
        return found

    def sync(self) -> None:
        """Wait until the disk has all commits, so that they survive a crash of the machine; may run in a thread."""
        with suppress(FileNotFoundError):  # closed meanwhile
            descriptor = os.open(f"{self.path}-wal", os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    def release(self) -> None:
        self._database.close()

    def remove(self) -> None:
        """Close and delete it: all of it is in the database."""
        self._counts_path.unlink(missing_ok=True)
        self._database.close()
        self.path.unlink(missing_ok=True)


class LiveJournal(Journal):
    """This gateway's journal. Used from one thread.

    Args:
        root: Directory of all journals of this machine.
        max_bytes: Size of the finished events at most.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, root: Path, max_bytes: int = 1 << 30) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            try:
                super().__init__(root / f"{uuid.uuid4().hex}.db")
            except BlockingIOError:  # another gateway took it for a dead one's before it was locked
                continue
            except sqlite3.Error as error:
                raise OSError(0, str(error)) from None
            if self.path.exists():
                break
            self.release()
        self.path.chmod(0o600)
        self._max_bytes = max_bytes
        self._memory: mmap.mmap | None = None
        self._slots = 0
        self._free: list[int] = []
        self.unwritten: deque[tuple[LedgerEvent, Slot | None]] = deque()
        """Events for which the disk had no room, with the slots that keep them meanwhile."""
        self.dropped = 0
        """Events that found no room anywhere; their content is in the log."""
        self._warned = False

    def begin(self, request: InFlight, received: float) -> Slot | None:
        """Note that a request was taken, at monotonic second `received`. None: there is no room for the note, and the
        request would be lost with this process."""
        try:
            if not self._free:
                self._add_slots()
            number = self._free[-1]
            self._database.execute("REPLACE INTO in_flight VALUES (?, ?)", (number, _encoder.encode(request)))
        except (OSError, sqlite3.Error) as error:
            self._warn("usage of requests in flight cannot be kept on disk", error)
            return None
        self._free.pop()
        assert self._memory is not None
        return Slot(self._memory, number, received)

    def finish(self, slot: Slot | None, event: LedgerEvent) -> None:
        try:
            self._append_within_bound(event)
        except (JournalFullError, sqlite3.Error) as error:
            self._warn("finished usage events cannot be kept on disk and wait in memory", error)
            if len(self.unwritten) >= MAX_UNWRITTEN:
                self.dropped += 1
                fields = {f"event_{name}": value for name, value in msgspec.structs.asdict(event).items()}
                _log.error("usage event dropped: neither the database nor the disk takes it", extra=fields)
            else:
                self.unwritten.append((event, slot))
        else:
            self.free(slot)

    def free(self, slot: Slot | None) -> None:
        """The request is in the journal or the database, or did nothing."""
        if slot is not None:
            slot.clear()
            self._free.append(slot.number)

    def close(self) -> None:
        """Delete the journal if all of it is in the database; else leave it to the next start."""
        while self.unwritten:
            event, slot = self.unwritten.popleft()
            with suppress(JournalFullError, sqlite3.Error):  # its slot, where it has one, says the same
                self._append_within_bound(event)
                self.free(slot)
        in_flight = len(self._free) < self._slots
        if self._memory is not None:
            self._memory.close()
        if in_flight or self.waiting:
            self.release()
        else:
            self.remove()

    def _append_within_bound(self, event: LedgerEvent) -> None:
        record = _encoder.encode(event)
        if self.size + len(record) > self._max_bytes:
            raise JournalFullError("metering.max_spool_bytes is reached")
        self.append(record)

    def _add_slots(self) -> None:
        """Make the file of counts longer, with its blocks allocated: a mapped page without one would end the
        process."""
        slots = 2 * self._slots or FIRST_SLOTS
        descriptor = os.open(self._counts_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, slots * _COUNTS.size)
            if self._memory is None:
                self._memory = mmap.mmap(descriptor, slots * _COUNTS.size)
            else:
                self._memory.resize(slots * _COUNTS.size)
        finally:
            os.close(descriptor)
        self._free += range(slots - 1, self._slots - 1, -1)
        self._slots = slots

    def _warn(self, what: str, why: Exception) -> None:
        if not self._warned:
            _log.error("%s: %r", what, why)
        self._warned = True


def dead_journals(root: Path) -> Iterator[Journal]:
    """The journals of gateways that are gone, locked by this process."""
    for path in sorted(root.glob("*.db")):
        try:
            yield Journal(path)
        except BlockingIOError:
            continue
        except sqlite3.Error as error:
            _log.error("the usage in %s cannot be read, and is tried again: %s", path, error)


def decode_event(record: bytes) -> LedgerEvent:
    return msgspec.msgpack.decode(record, type=LedgerEvent)
