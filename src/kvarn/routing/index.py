"""Which replicas of a model hold which KV blocks, and how much of a prompt each has.

A block is known by the first 8 bytes of its name (`kvarn.wire.block_names`). That two of the 64 million blocks of a
large fleet share them has a chance of about 1 in 10,000, and does little harm where it happens: a request goes to a
replica that must compute more than was thought. What a request may read is decided by the engine, by its tokens.

The compiled index takes 21 to 32 bytes of memory for each block that any replica holds, at most as many as the
replicas have KV blocks; it grows in 256 parts, at different times. Without a compiler a dict does the same, in about
100 bytes a block.
"""

from __future__ import annotations

import hashlib
import logging
from array import array
from typing import Protocol

from kvarn.shapes import BLOCK_SIZE
from kvarn.wire.block_events import NAME_BYTES

MAX_REPLICAS = 64  # replicas of one index: masks have as many bits

log = logging.getLogger(__name__)


class BlockIndex(Protocol):
    """Names stand one behind the other, 8 bytes each. Replicas are numbers from 0 to 63."""

    def insert(self, replica: int, names: bytes) -> None:
        """The replica holds these blocks."""
        ...

    def remove(self, replica: int, names: bytes) -> None:
        """It does not hold these any more; those that it did not hold are ignored."""
        ...

    def clear(self, replica: int) -> None:
        """It holds none."""
        ...

    def match(self, names: bytes) -> list[int]:
        """For each of 64 replicas, how many of a prompt's blocks it holds before the first that it does not."""
        ...

    def __len__(self) -> int:
        """Different blocks, those of replicas that were just cleared perhaps included."""
        ...


class PlainBlockIndex:
    """The index without a compiler, and the reference for the compiled one."""

    def __init__(self) -> None:
        self._replicas: dict[int, int] = {}  # bit masks by name

    def insert(self, replica: int, names: bytes) -> None:
        bit, replicas = 1 << _checked(replica), self._replicas
        for name in _unpacked(names):
            replicas[name] = replicas.get(name, 0) | bit

    def remove(self, replica: int, names: bytes) -> None:
        bit, replicas = 1 << _checked(replica), self._replicas
        for name in _unpacked(names):
            held = replicas.get(name, 0)
            if held & ~bit:
                replicas[name] = held & ~bit
            elif held:
                del replicas[name]

    def clear(self, replica: int) -> None:
        rest = ~(1 << _checked(replica))
        self._replicas = {name: held & rest for name, held in self._replicas.items() if held & rest}

    def match(self, names: bytes) -> list[int]:
        blocks = [0] * MAX_REPLICAS
        holders, unpacked = (1 << MAX_REPLICAS) - 1, _unpacked(names)
        for position, name in enumerate(unpacked):
            still = holders & self._replicas.get(name, 0)
            if still != holders:
                _count(blocks, holders & ~still, position)
                holders = still
            if not holders:
                break
        _count(blocks, holders, len(unpacked))
        return blocks

    def __len__(self) -> int:
        return len(self._replicas)


def plain_block_names(root: bytes, tokens: list[int], block_size: int = BLOCK_SIZE) -> bytes:
    """`block_names` without a compiler."""
    digest, names = hashlib.blake2b, []
    packed, width = array("q", tokens).tobytes(), 8 * block_size
    for start in range(0, len(packed) - width + 1, width):
        root = digest(root + packed[start : start + width], digest_size=16).digest()
        names.append(root[:NAME_BYTES])
    return b"".join(names)


try:
    from kvarn.routing import _block_index as _compiled
except ImportError:
    _compiled = None  # type: ignore[assignment]


def new_block_index() -> BlockIndex:
    """The compiled index where there is one."""
    if _compiled is None:
        log.warning("the index of cached blocks is not compiled: routing takes longer and more memory")
        return PlainBlockIndex()
    return _compiled.BlockIndex()


def block_names(root: bytes, tokens: list[int]) -> bytes:
    """Names of a prompt's full blocks as the index has them; `root` is `kvarn.wire.block_names.root_hash`."""
    return plain_block_names(root, tokens) if _compiled is None else _compiled.block_names(root, tokens, BLOCK_SIZE)


def _checked(replica: int) -> int:
    if not 0 <= replica < MAX_REPLICAS:
        raise ValueError(f"replicas are numbered 0 to {MAX_REPLICAS - 1}, not {replica}")
    return replica


def _unpacked(names: bytes) -> array[int]:
    if len(names) % NAME_BYTES:
        raise ValueError("names of blocks are 8 bytes each")
    return array("Q", names)


def _count(blocks: list[int], replicas: int, count: int) -> None:
    while replicas:
        lowest = replicas & -replicas
        blocks[lowest.bit_length() - 1] = count
        replicas ^= lowest
