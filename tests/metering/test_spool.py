"""The queue of finished events: in order, across restarts, up to the record that was cut short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvarn.metering import spool as spools
from kvarn.metering.spool import Spool, SpoolFullError


def drain(spool: Spool, limit: int = 7) -> list[bytes]:
    found: list[bytes] = []
    while records := (batch := spool.read(limit)).records:
        found += records
        spool.done(batch)
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "gateway"
    made.mkdir()
    return made


def numbered(count: int) -> list[bytes]:
    return [b"record %d" % number for number in range(count)]


def test_records_come_back_in_order_and_segments_go(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spools, "SEGMENT_BYTES", 200)
    spool = Spool(directory)
    for record in numbered(100):
        spool.append(record)
    assert len(list(directory.iterdir())) > 3 and spool.has_unread
    assert drain(spool) == numbered(100)
    assert not spool.has_unread
    spool.append(b"one more")
    assert drain(spool) == [b"one more"]
    assert len(list(directory.iterdir())) <= 1
    assert spool.size == sum(path.stat().st_size for path in directory.iterdir())


def test_what_is_not_done_is_read_again(directory: Path) -> None:
    spool = Spool(directory)
    for record in numbered(5):
        spool.append(record)
    assert spool.read(3).records == spool.read(3).records == numbered(3)
    spool.done(spool.read(3))
    assert spool.read(9).records == numbered(5)[3:]
    spool.close()
    assert drain(Spool(directory)) == numbered(5)  # a new process cannot know: the ledger drops what it has


def test_records_appended_while_a_batch_is_written_are_kept(directory: Path) -> None:
    spool = Spool(directory)
    spool.append(b"first")
    batch = spool.read(10)
    spool.append(b"second")
    spool.done(batch)
    assert drain(spool) == [b"second"]


@given(cut=st.integers(1, 40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
def test_a_record_cut_short_at_any_byte_is_left_out(tmp_path_factory: Any, cut: int) -> None:
    directory = tmp_path_factory.mktemp("spool") / "gateway"
    directory.mkdir()
    spool = Spool(directory)
    for record in (b"a" * 5, b"b" * 5, b"c" * 32):
        spool.append(record)
    spool.close()
    (path,) = directory.iterdir()
    path.write_bytes(path.read_bytes()[:-cut])
    dead = Spool(directory)
    assert drain(dead, 10) == [b"a" * 5, b"b" * 5]
    assert not dead.has_unread and list(directory.iterdir()) == []
    assert list(directory.parent.glob("damaged-*")) == []


@pytest.mark.parametrize("damage", ["flip", "zeros", "magic"])
def test_a_damaged_segment_is_kept_for_a_person_and_the_next_one_read(
    directory: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spools, "SEGMENT_BYTES", 20)
    spool = Spool(directory)
    for record in (b"in the first", b"in the second", b"in the third"):
        spool.append(record)
    spool.close()
    first = min(directory.iterdir())
    content = bytearray(first.read_bytes())
    position = {"flip": -1, "zeros": 8, "magic": 0}[damage]
    if damage == "zeros":
        content[position:] = bytes(len(content) - position)
    else:
        content[position] ^= 0xFF
    first.write_bytes(content)
    assert drain(Spool(directory)) == [b"in the second", b"in the third"]
    (kept,) = directory.parent.glob("damaged-*")
    assert kept.read_bytes() == content


def test_the_spool_has_a_bound(directory: Path) -> None:
    spool = Spool(directory, max_bytes=100)
    with pytest.raises(SpoolFullError):
        for record in numbered(100):
            spool.append(record)
    assert spool.size <= 100
    drain(spool)
    spool.append(b"there is room again")


def test_a_disk_that_is_full_at_the_beginning_of_a_segment_and_has_room_later_is_used_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(directory)
    with monkeypatch.context() as full:
        full.setattr("kvarn.metering.spool.os.write", lambda descriptor, data: 0)
        with pytest.raises(OSError, match="full"):
            spool.append(b"too early")
    spool.append(b"in time")
    assert drain(spool) == [b"in time"]
