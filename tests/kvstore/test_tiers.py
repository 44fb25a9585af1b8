"""Memory and disk together: what is stored can be found, also by the next process, and by nobody else."""

from __future__ import annotations

import base64
import os
import threading
from pathlib import Path

import pytest

from kv_blocks import (
    BLOCK_BYTES,
    SCOPE,
    contents_of,
    fetch,
    load,
    name_of,
    open_disk,
    open_store,
    store,
    transfer,
    wait_until,
)
from kvarn.kvstore import BadBlockError, DiskTier, KVStoreError, MemoryTier, TieredStore
from kvarn.kvstore.keys import MasterKeys

WAIT_S = 120.0


def master_key(path: Path, *older: Path) -> Path:
    keys = [base64.b64encode(os.urandom(32)).decode(), *(text for file in older for text in file.read_text().split())]
    path.write_text("\n".join(keys))
    return path


def test_blocks_that_memory_gave_up_come_back_from_disk(tmp_path: Path) -> None:
    tiers = open_store(open_disk(tmp_path), blocks=4)
    store(tiers, range(10))
    assert not tiers.is_loadable(name_of(0))
    assert all(tiers.holds(name_of(number)) for number in range(10))
    assert fetch(tiers, [0, 1]) == [contents_of(0), contents_of(1)]
    tiers.close()


def test_each_tier_behind_memory_keeps_every_block_and_any_gives_it_back(tmp_path: Path) -> None:
    first, second = open_disk(tmp_path / "first"), open_disk(tmp_path / "second")
    second.label = "second"
    tiers = TieredStore(MemoryTier(64, BLOCK_BYTES, 64), [first, second])
    store(tiers, range(10))
    assert {name: tier.blocks for name, tier in tiers.stats().items()} == {"memory": 10, "disk": 10, "second": 10}
    tiers.close()
    again = TieredStore(
        MemoryTier(64, BLOCK_BYTES, 64), [open_disk(tmp_path / "empty"), open_disk(tmp_path / "second")]
    )
    assert fetch(again, range(10)) == [contents_of(number) for number in range(10)]
    again.close()


def test_a_restart_keeps_all_blocks(tmp_path: Path) -> None:
    tiers = open_store(open_disk(tmp_path))
    store(tiers, range(20))
    tiers.close()
    again = open_store(open_disk(tmp_path))
    assert fetch(again, range(20)) == [contents_of(number) for number in range(20)]
    store(again, range(20, 25))
    again.close()
    third = open_store(open_disk(tmp_path))
    assert sum(third.holds(name_of(number)) for number in range(30)) == 25
    third.close()


def test_other_weights_find_nothing_and_the_old_blocks_are_deleted(tmp_path: Path) -> None:
    tiers = open_store(open_disk(tmp_path))
    store(tiers, range(5))
    tiers.close()
    other = open_disk(tmp_path, model=b"other-weights---")
    assert len(other) == 0
    other.close()
    assert not list(tmp_path.rglob("*.segment"))


def test_a_block_is_not_given_to_another_tenant_or_scope(tmp_path: Path) -> None:
    disk = open_disk(tmp_path)
    tiers = open_store(disk)
    store(tiers, [1, 2])
    into = memoryview(bytearray(BLOCK_BYTES))
    with pytest.raises(BadBlockError, match="other block"):
        disk.read(name_of(1), "mallory", SCOPE, into)
    with pytest.raises(BadBlockError, match="other block"):
        disk.read(name_of(2), "acme", b"another-scope---", into)
    tiers.close()


def test_disk_space_is_bounded_and_the_latest_blocks_stay(tmp_path: Path) -> None:
    disk = open_disk(tmp_path, blocks=40)
    tiers = open_store(disk)
    store(tiers, range(200))
    used = sum(path.stat().st_size for path in tmp_path.rglob("*.segment"))
    assert used == disk.num_bytes <= disk.capacity_bytes
    assert all(tiers.holds(name_of(number)) for number in range(165, 200))
    assert len(disk) >= 35
    assert tiers.stats()["disk"].evictions_total == 200 - len(disk)
    tiers.close()


def test_blocks_in_use_outlive_others_on_disk(tmp_path: Path) -> None:
    tiers = open_store(open_disk(tmp_path, blocks=40), blocks=4)
    store(tiers, range(30))
    for number in range(30, 100):
        assert fetch(tiers, [0]) == [contents_of(0)]
        store(tiers, [number, number + 1000, number + 2000])
    tiers.close()


def test_a_tenants_share_of_the_disk_is_its_own(tmp_path: Path) -> None:
    disk = open_disk(tmp_path, blocks=100, tenant_blocks=20)
    tiers = open_store(disk)
    store(tiers, range(500, 510), "quiet")
    store(tiers, range(100), "loud")
    assert 15 <= sum(name_of(number) in disk for number in range(100)) <= 25
    assert all(name_of(number) in disk for number in range(500, 510))
    tiers.close()


def test_a_deleted_tenants_blocks_are_gone_from_memory_and_disk_and_stay_so(tmp_path: Path) -> None:
    tiers = open_store(open_disk(tmp_path))
    store(tiers, range(5))
    store(tiers, range(10, 15), "other")
    tiers.forget("acme")
    assert tiers.flush(10.0)
    store(tiers, range(20, 25))
    assert not any(tiers.holds(name_of(number)) for number in (*range(5), *range(20, 25)))
    assert len(list(tmp_path.rglob("*.segment"))) == 1
    tiers.close()
    again = open_store(open_disk(tmp_path))
    assert fetch(again, range(10, 15), "other") == [contents_of(number) for number in range(10, 15)]
    again.close()


def test_one_engine_at_a_time_uses_a_directory(tmp_path: Path) -> None:
    first = open_disk(tmp_path)
    with pytest.raises(KVStoreError, match="another engine"):
        open_disk(tmp_path)
    first.close()
    open_disk(tmp_path).close()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KVStoreError, match="cannot keep KV blocks in"):
        open_disk(tmp_path / "file")


def test_a_disk_without_room_for_a_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KVStoreError, match="disk_gib"):
        open_disk(tmp_path, blocks=0)


# Encryption -----------------------------------------------------------------------------------------------------------


def test_encrypted_blocks_come_back_and_show_nothing_on_disk(tmp_path: Path) -> None:
    keys = MasterKeys.load(master_key(tmp_path / "master"))
    tiers = open_store(open_disk(tmp_path / "kv", keys=keys))
    store(tiers, range(5))
    tiers.close()
    (segment,) = (tmp_path / "kv").rglob("*.segment")
    raw = segment.read_bytes()
    assert not any(contents_of(number)[:16] in raw for number in range(5))
    again = open_store(open_disk(tmp_path / "kv", keys=MasterKeys.load(tmp_path / "master")))
    assert fetch(again, range(5)) == [contents_of(number) for number in range(5)]
    again.close()


def test_an_older_master_key_still_opens_what_it_protected(tmp_path: Path) -> None:
    old = master_key(tmp_path / "old")
    tiers = open_store(open_disk(tmp_path / "kv", keys=MasterKeys.load(old)))
    store(tiers, [1])
    tiers.close()
    again = open_store(open_disk(tmp_path / "kv", keys=MasterKeys.load(master_key(tmp_path / "new", old))))
    assert fetch(again, [1]) == [contents_of(1)]
    again.close()


def test_blocks_whose_key_is_gone_are_deleted_and_counted(tmp_path: Path) -> None:
    master = master_key(tmp_path / "master")
    tiers = open_store(open_disk(tmp_path / "kv", keys=MasterKeys.load(master)))
    store(tiers, range(5))
    store(tiers, range(10, 15), "other")
    tiers.close()
    next((tmp_path / "kv").rglob("key")).unlink()
    disk = open_disk(tmp_path / "kv", keys=MasterKeys.load(master))
    assert len(disk) == disk.unusable == 5
    disk.close()
    stranger = open_disk(tmp_path / "kv", keys=MasterKeys.load(master_key(tmp_path / "another")))
    assert len(stranger) == 0
    stranger.close()


def test_blocks_written_without_encryption_are_not_read_with_it(tmp_path: Path) -> None:
    tiers = open_store(open_disk(tmp_path / "kv"))
    store(tiers, range(5))
    tiers.close()
    disk = open_disk(tmp_path / "kv", keys=MasterKeys.load(master_key(tmp_path / "master")))
    assert len(disk) == 0
    disk.close()


@pytest.mark.parametrize("text", ["", "short", "no base64 at all!"])
def test_a_key_file_that_holds_no_key_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "master").write_text(text)
    with pytest.raises(KVStoreError, match="openssl rand"):
        MasterKeys.load(tmp_path / "master")


# Slowness -------------------------------------------------------------------------------------------------------------


class GatedDisk(DiskTier):
    """Writes and reads each batch or block once it may; a read takes a hundredth of a second of its clock."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "demo", SCOPE, block_bytes=BLOCK_BYTES, capacity_bytes=1 << 20)
        self.may_write, self.may_read, self.now = threading.Event(), threading.Semaphore(0), 0.0

    def write(self, *arguments) -> None:
        assert self.may_write.wait(WAIT_S)
        super().write(*arguments)

    def read(self, *arguments) -> None:
        assert self.may_read.acquire(timeout=WAIT_S)
        self.now += 0.01
        super().read(*arguments)


@pytest.fixture
def gated(tmp_path: Path) -> tuple[TieredStore, GatedDisk]:
    """Blocks 0 to 19 are on disk."""
    tiers = open_store(open_disk(tmp_path, model=SCOPE))
    store(tiers, range(20))
    tiers.close()
    disk = GatedDisk(tmp_path)
    return TieredStore(MemoryTier(64, BLOCK_BYTES, 64), [disk], lambda: disk.now), disk


def test_storing_never_waits_for_the_disk_and_what_it_cannot_take_is_counted(tmp_path: Path) -> None:
    disk = GatedDisk(tmp_path)
    tiers = open_store(disk, blocks=8)
    for number in range(200):
        tiers.store([transfer(number)], [[memoryview(contents_of(number))]])
    disk.may_write.set()
    assert tiers.flush(WAIT_S)
    stats = tiers.stats()
    written, dropped = stats["disk"].blocks, stats["disk"].dropped_total["slow"]
    assert written + dropped + stats["memory"].dropped_total.get("full", 0) == 200
    assert written > 0
    assert dropped > 0
    tiers.close()


def test_what_has_come_of_a_fetch_that_was_given_up_can_be_loaded(gated: tuple[TieredStore, GatedDisk]) -> None:
    tiers, disk = gated
    fetching = tiers.fetch([name_of(number) for number in range(20)], "acme", SCOPE)
    assert fetching is not None
    disk.may_read.release(2)
    wait_until(lambda: tiers.is_loadable(name_of(1)))
    assert not fetching.is_done()
    assert load(tiers, 0) == contents_of(0)
    fetching.release()
    fetching.release()
    assert fetching.is_done()
    disk.may_read.release(20)
    tiers.close()
    assert tiers.stats()["disk"].loaded_bytes_total <= 3 * BLOCK_BYTES, "the rest is not read"


def test_fetches_leave_half_of_the_memory_to_others(tmp_path: Path) -> None:
    tiers = open_store(open_disk(tmp_path), blocks=16)
    store(tiers, range(40))
    first = tiers.fetch([name_of(number) for number in range(8)], "acme", SCOPE)
    assert first is not None
    assert tiers.fetch([name_of(20)], "acme", SCOPE) is None
    first.release()
    assert fetch(tiers, [20]) == [contents_of(20)]
    tiers.close()


def test_a_block_from_another_process_is_kept_or_ends_its_fetch() -> None:
    tiers = open_store(None, blocks=4)

    def receive(number: int) -> tuple[bool, bool]:
        """Whether it was kept, and whether its fetch has ended."""
        fetching = tiers.expect([name_of(number)], "acme", SCOPE)
        assert fetching is not None
        kept = tiers.receive(fetching, name_of(number), memoryview(contents_of(number)))
        ended = fetching.is_done()
        fetching.release()
        return kept, ended

    assert receive(0) == (True, False)
    assert load(tiers, 0) == contents_of(0)
    assert receive(0) == (True, False), "it is there already"
    transfers = [transfer(number) for number in range(1, 5)]
    slots = tiers.begin_store(transfers)
    assert None not in slots, "all of the memory is being written"
    assert receive(5) == (False, True)
    tiers.end_store(transfers, slots)
    assert receive(5) == (True, False)
    tiers.forget("acme")
    assert receive(6) == (False, True)
    assert not tiers.holds(name_of(6))


def test_the_time_of_a_fetch_follows_the_speed_that_was_measured(gated: tuple[TieredStore, GatedDisk]) -> None:
    tiers, disk = gated
    before = tiers.fetch_s(10)
    disk.may_read.release(20)
    fetch(tiers, range(20))
    assert tiers.fetch_s(10) > 5 * before
    tiers.close()
