"""Whatever happens to the files: no wrong block is used, and no request is lost.

The thorough profile injects 10,000 faults. An executor that knows what must stand in every slot looks for wrong ones.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine_world import BLOCK_BYTES as ENGINE_BLOCK_BYTES
from engine_world import World
from kv_blocks import MODEL, contents_of, fetch, name_of, open_disk, open_store, store, wait_until
from kvarn.kvstore import DiskTier, MemoryTier, TieredStore
from profiles import effort

SUPPORT = Path(__file__).parents[1] / "support"
BLOCKS = 12


def flip(raw: bytearray, rng: random.Random) -> bytes:
    for _ in range(rng.choice([1, 1, 2, 30])):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(raw)


def truncate(raw: bytearray, rng: random.Random) -> bytes:
    return bytes(raw[: rng.randrange(len(raw))])


def tear(raw: bytearray, rng: random.Random) -> bytes:
    """A part was never written, or has what was there before."""
    start = rng.randrange(len(raw))
    end = rng.randrange(start, len(raw)) + 1
    raw[start:end] = rng.choice([bytes(end - start), rng.randbytes(end - start)])
    return bytes(raw)


def shift(raw: bytearray, rng: random.Random) -> bytes:
    """Records stand where others belong, or half of one does."""
    start, size = rng.randrange(len(raw)), rng.randrange(1, len(raw))
    part = bytes(raw[start : start + size])
    place = rng.randrange(len(raw))
    raw[place : place + len(part)] = part
    return bytes(raw)


FAULTS: dict[str, Callable[[bytearray, random.Random], bytes]] = {
    "flip": flip,
    "truncate": truncate,
    "tear": tear,
    "shift": shift,
}


def damage(directory: Path, kind: str, rng: random.Random) -> None:
    path = rng.choice(sorted(directory.rglob("*.segment")))
    path.write_bytes(FAULTS[kind](bytearray(path.read_bytes()), rng))


@pytest.mark.parametrize("kind", FAULTS)
def test_a_damaged_block_is_dropped_and_counted_and_never_used(tmp_path: Path, kind: str) -> None:
    tiers = open_store(open_disk(tmp_path / "whole"))
    store(tiers, range(BLOCKS))
    tiers.close()
    rng, lost = random.Random(kind), 0
    for _ in range(effort(40, 2400)):
        shutil.copytree(tmp_path / "whole", tmp_path / "damaged")
        damage(tmp_path / "damaged", kind, rng)
        disk = open_disk(tmp_path / "damaged")
        tiers = open_store(disk)
        for number in range(BLOCKS):
            (found,) = fetch(tiers, [number])
            assert found in (contents_of(number), None), "a wrong block was used"
            lost += found is None
        missing = [number for number in range(BLOCKS) if not tiers.is_loadable(name_of(number))]
        if kind == "flip":
            assert sum(tiers.stats()["disk"].dropped_total.values()) == len(missing)
        store(tiers, range(BLOCKS))
        tiers.close()
        again = open_store(open_disk(tmp_path / "damaged"))
        assert fetch(again, range(BLOCKS)) == [contents_of(number) for number in range(BLOCKS)], "not stored again"
        again.close()
        shutil.rmtree(tmp_path / "damaged")
    assert lost, "no fault did anything"


def other_things(directory: Path) -> Iterator[Callable[[], None]]:
    """Puts something else in the place of a segment, a tenant's directory and another model's directory."""
    segment = min(directory.rglob("*.segment"))
    tenant = segment.parent
    for place in (segment, tenant, tenant.parent.with_name("0" * len(tenant.parent.name))):
        for put in (Path.mkdir, Path.touch, os.mkfifo, lambda path: path.symlink_to("nowhere")):
            yield partial(_replace, place, put)


def _replace(place: Path, put: Callable[[Path], Any]) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    put(place)


def test_what_stands_in_the_place_of_files_is_left_out(tmp_path: Path) -> None:
    tiers = open_store(open_disk(tmp_path / "store"))
    store(tiers, range(BLOCKS))
    tiers.close()
    for number in range(12):
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "store", directory)
        list(other_things(directory))[number]()
        tiers = open_store(open_disk(directory))
        for block in range(BLOCKS):
            assert fetch(tiers, [block])[0] in (contents_of(block), None)
        store(tiers, range(BLOCKS))
        tiers.close()
        again = open_store(open_disk(directory))
        assert fetch(again, range(BLOCKS)) == [contents_of(block) for block in range(BLOCKS)]
        again.close()


def engine(directory: Path) -> tuple[World, TieredStore]:
    disk = DiskTier(directory, "demo", MODEL, block_bytes=ENGINE_BLOCK_BYTES, capacity_bytes=1 << 20)
    tiers = TieredStore(MemoryTier(40, ENGINE_BLOCK_BYTES, 40), [disk])
    return World(num_blocks=24, connector=tiers, seconds=lambda plan: 0.001 + 0.001 * plan.num_tokens), tiers


def converse(world: World, tiers: TieredStore, name: str) -> None:
    """Conversations with a common beginning; all must be answered as alone. Fetches get the time that they need."""
    for talk in range(3):
        for turn in range(1, 4):
            prompt = [i * i % 50 for i in range(40)] + [(talk * 11 + i) % 50 for i in range(30 * turn)]
            world.submit(f"{name}-{talk}-{turn}", prompt, max_tokens=5)
            for sequence in world.engine.scheduler.queue.candidates(world.now):
                wait_until(lambda waiting=sequence: waiting.fetch.pending is None or waiting.fetch.pending.is_done())
            world.run()
            world.assert_answered(f"{name}-{talk}-{turn}")
    assert tiers.flush(10.0)


def test_after_a_restart_the_hit_rate_is_that_of_before(tmp_path: Path) -> None:
    """Of a second round of the same prompts, in the same process and in the next: the same tokens are not computed."""
    world, tiers = engine(tmp_path)
    converse(world, tiers, "first")
    cold = world.engine.stats().cached_tokens_total
    converse(world, tiers, "second")
    before = world.engine.stats().cached_tokens_total - cold
    tiers.close()
    world, tiers = engine(tmp_path)
    converse(world, tiers, "third")
    after = world.engine.stats()
    assert after.cached_tokens_total >= 0.99 * before > 0
    assert after.lookups.hits_total > 0
    tiers.close()


# Processes that end in the middle -------------------------------------------------------------------------------------


class Writers:
    """Starts writers in processes of their own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SUPPORT / "kv_writer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def start(self, directory: Path, first: int, limit: int = 0) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{directory} {first} {limit}\n")
        word, pid = self.line()
        assert word == "pid"
        return int(pid)

    def rest(self) -> list[list[str]]:
        """What a writer said to its end; half of a word may be its last."""
        lines = []
        while (line := self.line()) and not line[0].endswith("ended"):
            lines.append(line)
        return lines


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    started = Writers()
    yield started
    assert started.process.stdin is not None
    started.process.stdin.close()
    started.process.wait(10.0)


def test_a_writer_that_is_killed_loses_at_most_what_was_not_on_disk(writers: Writers, tmp_path: Path) -> None:
    rng, on_disk, first = random.Random(3), set[int](), 0
    for _ in range(effort(6, 100)):
        pid = writers.start(tmp_path, first)
        for _ in range(rng.randrange(30)):
            (number,) = writers.line()
            on_disk.add(int(number))
        os.kill(pid, signal.SIGKILL)
        on_disk.update(int(line[0]) for line in writers.rest()[:-1])
        disk = open_disk(tmp_path, blocks=5000)
        tiers = open_store(disk)
        missing = [number for number in on_disk if name_of(number) not in disk]
        assert not missing, "a block was visible before it was on disk"
        for number in rng.sample(sorted(on_disk), min(len(on_disk), 20)):
            assert fetch(tiers, [number]) == [contents_of(number)]
        tiers.close()
        first = max(on_disk, default=-1) + 1000
    assert len(on_disk) > 20


def test_a_full_disk_drops_blocks_and_the_rest_goes_on(writers: Writers, tmp_path: Path) -> None:
    writers.start(tmp_path, 0, limit=5000)
    *_, (_, blocks, dropped) = writers.rest()
    assert int(blocks) + int(dropped) == 100
    assert int(blocks) > 5
    assert int(dropped) > 5
    disk = open_disk(tmp_path, blocks=5000)
    tiers = open_store(disk)
    assert len(disk) == int(blocks)
    for number in range(100):
        assert fetch(tiers, [number]) in ([contents_of(number)], [None])
    tiers.close()
