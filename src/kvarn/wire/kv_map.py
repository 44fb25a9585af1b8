"""Picture of an engine's KV blocks, for the console. Contents are never told: neither tokens nor texts."""

from __future__ import annotations

import msgspec

ADAPTER = 8
"""Flag in `states`: the block holds an adapter's weights."""
CACHED = 128
"""Flag in `states`: the prefix cache names the block, so that other requests may find it."""
HOLDERS = (0, 0, 1, 2, 3, 5, 9, 17)
"""The least number of block tables that hold a block, by the lowest three bits of its state. 0 is a free block, 1 one
that only the prefix cache (or an idle adapter) keeps."""
AGES_S = (1.0, 10.0, 60.0, 600.0, 3600.0)
"""Seconds since an idle block was released: bits 4 to 6 of its state count those that have passed."""
NO_OWNER = 255
OTHER_OWNERS = 254
"""`owners` of blocks whose tenants did not fit into the table."""


class KVTierBlocks(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    blocks: int
    used_bytes: int
    capacity_bytes: int


class KVMap(msgspec.Struct, frozen=True, kw_only=True):
    """All blocks of an engine: a byte a block in each of the first two fields."""

    states: bytes
    owners: bytes
    """Place of the block's tenant in `tenants`; `NO_OWNER`: none."""
    tenants: list[str]
    tiers: list[KVTierBlocks]


class PathBlock(msgspec.Struct, frozen=True, array_like=True):
    block: int
    holders: int
    """Block tables of running sequences that hold it."""
    followers: int
    """Cached blocks that follow it directly."""


class KVPath(msgspec.Struct, frozen=True, kw_only=True):
    """A block, and what stands before it in the prefix cache."""

    block: int
    tenant: str
    """Empty: nobody's, or not known."""
    adapter: str
    """The adapter whose cached tokens, or whose weights, the block holds."""
    is_adapter: bool
    depth: int
    """Blocks of its path in the prefix cache, its own included; 0: the cache does not name it."""
    path: list[PathBlock]
    """The block itself first, then towards the root; at most `MAX_PATH`."""
    request_ids: list[str]
    """Turns that hold it, at most `MAX_PATH_REQUESTS`."""


MAX_PATH = 512
MAX_PATH_REQUESTS = 16
