"""Imports the journals of earlier versions of Kvarn (up to November 2026), left by a gateway that died.

usage/<gateway>.lock     locked (flock) while the gateway lives
usage/<gateway>/spool-…  `kvspool1`, then finished events, each with its length and CRC-32
usage/<gateway>/slots-…  requests in flight, a page each: length << 32 | CRC-32, prompt, cached and output tokens,
                         microseconds to the first token plus one, microseconds since 1970; at 64 the request
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvarn.metering.event import LOST, InFlight, Measured, settle
from kvarn.metering.journal import LiveJournal, encode_event
from kvarn.metering.prices import PriceBook

_MAGIC = b"kvspool1"
_RECORD = struct.Struct("<II")
_SLOT = struct.Struct("<6Q")
_SLOT_BYTES = 4096

_log = logging.getLogger("kvarn.metering")


def import_old_journals(root: Path, prices: PriceBook, currency: str) -> None:
    """Turn what dead gateways left into a journal that is taken over like any other.

    Interrupted, it may be done again: the ledger drops repeats by their id.
    """
    for lock in sorted(root.glob("*.lock")):
        descriptor = os.open(lock, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (directory := lock.with_suffix("")).is_dir():
                journal = LiveJournal(root)
                for path in sorted(directory.glob("spool-*")):
                    for record in _finished(path):
                        journal.append(record)
                for path in sorted(directory.glob("slots-*")):
                    for request, had in _in_flight(path):
                        journal.append(encode_event(settle(request, had, prices, currency)))
                journal.close()
                shutil.rmtree(directory)
                _log.info("imported the journal of an earlier version: %s", directory)
            lock.unlink()
        except BlockingIOError:  # it lives
            continue
        finally:
            os.close(descriptor)


def _finished(path: Path) -> Iterator[bytes]:
    content, at = path.read_bytes(), len(_MAGIC)
    while at + _RECORD.size <= len(content) and content.startswith(_MAGIC):
        length, checksum = _RECORD.unpack_from(content, at)
        record = content[at + _RECORD.size : at + _RECORD.size + length]
        if zlib.crc32(record) != checksum:
            break
        yield record
        at += _RECORD.size + length
    if at < len(content):  # cut short by the gateway's death: then its request is in a slot; or damaged
        kept = path.parent.parent / f"damaged-{path.parent.name}-{path.name}"
        kept.write_bytes(content)
        _log.warning("a spool of usage events ends in the middle of a record, at byte %d; kept as %s", at, kept)


def _in_flight(path: Path) -> Iterator[tuple[InFlight, Measured]]:
    content = path.read_bytes()
    for start in range(0, len(content) - _SLOT_BYTES + 1, _SLOT_BYTES):
        state, prompt, cached, output, first, changed = _SLOT.unpack_from(content, start)
        encoded = content[start + 64 : start + 64 + (state >> 32)]
        if not state or not prompt or zlib.crc32(encoded) != state & 0xFFFFFFFF:
            continue
        try:
            request = msgspec.msgpack.decode(encoded, type=InFlight)
        except msgspec.DecodeError as error:
            _log.error("a request in flight cannot be read: %s, %s at %d: %s", error, path, start, encoded.hex())
            continue
        ttft_s = (first - 1) / 1e6 if first else None
        yield request, Measured(LOST, prompt, cached, output, max(changed / 1e6, request.started), ttft_s)
