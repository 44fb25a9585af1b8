"""Stores of small blocks for the tests: contents follow from a block's number, so that a wrong one is seen."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from kvarn.engine.plan import BlockTransfer
from kvarn.kvstore import DiskTier, MemoryTier, TieredStore
from kvarn.kvstore.keys import MasterKeys

BLOCK_BYTES = 512
MODEL = b"weights-and-form"
SCOPE = b"tenant-salt-lora"


def name_of(number: int) -> bytes:
    return hashlib.blake2b(b"name %d" % number, digest_size=16).digest()


def contents_of(number: int) -> bytes:
    return random.Random(number).randbytes(BLOCK_BYTES)


def transfer(number: int, tenant: str = "acme") -> BlockTransfer:
    return BlockTransfer(number, name_of(number), tenant, SCOPE)


def open_disk(
    directory: Path,
    *,
    blocks: int = 1000,
    tenant_blocks: int | None = None,
    model: bytes = MODEL,
    keys: MasterKeys | None = None,
) -> DiskTier:
    """A tier with room for so many blocks."""
    size = BLOCK_BYTES + 200
    return DiskTier(
        directory,
        "demo",
        model,
        block_bytes=BLOCK_BYTES,
        capacity_bytes=blocks * size,
        tenant_bytes=None if tenant_blocks is None else tenant_blocks * size,
        keys=keys,
    )


def open_store(disk: DiskTier | None, *, blocks: int = 64) -> TieredStore:
    return TieredStore(MemoryTier(blocks, BLOCK_BYTES, blocks), [] if disk is None else [disk])


def store(tiers: TieredStore, numbers: Iterable[int], tenant: str = "acme") -> None:
    """Store blocks as an executor does, in two parts; each is on disk before the next, where there is one."""
    for number in numbers:
        contents = memoryview(contents_of(number))
        tiers.store([transfer(number, tenant)], [[contents[:100], contents[100:]]])
        assert tiers.flush(10.0)


def load(tiers: TieredStore, number: int) -> bytes | None:
    """A loadable block's contents; None where it is not loadable."""
    if not tiers.reserve(name_of(number)):
        return None
    parts = [bytearray(400), bytearray(BLOCK_BYTES - 400)]
    tiers.load([transfer(number)], [[memoryview(part) for part in parts]])
    return b"".join(parts)


def fetch(tiers: TieredStore, numbers: Iterable[int], tenant: str = "acme") -> list[bytes | None]:
    """Bring blocks near, as a waiting sequence does, and load what came."""
    numbers = list(numbers)
    fetching = tiers.fetch([name_of(number) for number in numbers], tenant, SCOPE)
    assert fetching is not None
    wait_until(fetching.is_done)
    found = [load(tiers, number) for number in numbers]
    fetching.release()
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.0005)
