"""A picture of the KV blocks: who holds each, who could find it, how long it has been idle (`kvarn.wire.kv_map`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from kvarn.engine.memory.kv_cache_manager import KVCacheManager
from kvarn.engine.memory.prefix_cache import PrefixNode
from kvarn.engine.request import Sequence
from kvarn.wire.kv_map import (
    ADAPTER,
    AGES_S,
    CACHED,
    HOLDERS,
    MAX_PATH,
    MAX_PATH_REQUESTS,
    NO_OWNER,
    OTHER_OWNERS,
    KVMapPart,
    KVPath,
    PathBlock,
)

PART_BLOCKS = 4096
"""Blocks told at once: about a millisecond's work."""
_IDLE = 1
_MOST_HELD = HOLDERS[-1]
_HELD_STATES = bytes([0, *(bisect_right(HOLDERS, held) - 1 for held in range(1, _MOST_HELD + 1))])
"""State of a block by its holders; 0 holders: a free one's."""


def map_part(memory: KVCacheManager, running: Iterable[Sequence], first: int, now: float) -> KVMapPart:
    """States and tenants of the blocks from `first` on; none where there is no such block."""
    pool = memory.pool
    end = min(first + PART_BLOCKS, pool.num_blocks)
    if not 0 <= first < end:
        return KVMapPart(first=first, kv_blocks=pool.num_blocks, states=b"", owners=b"", tenants=[])
    tenants, owners = _Tenants(), bytearray([NO_OWNER]) * (end - first)
    states = bytearray(
        [_HELD_STATES[held if held < _MOST_HELD else _MOST_HELD] for held in pool.references_between(first, end)]
    )
    blocks, adapters = range(first, end), memory.adapters.blocks
    for place, node in enumerate(map(memory.cache.nodes.get, blocks)):
        if node is not None:
            states[place] |= CACHED
            owners[place] = tenants[node.scope.tenant]
    for block in adapters.keys() & set(blocks) if adapters else ():
        states[block - first] |= ADAPTER
    for place, released_s in enumerate(map(pool.idle.get, blocks)):
        if released_s is not None:
            states[place] |= _IDLE | bisect_right(AGES_S, now - released_s) << 4
    for sequence in running:  # blocks that the cache does not name: those behind its path
        for block in sequence.blocks[len(sequence.nodes) :]:
            if first <= block < end and owners[block - first] == NO_OWNER:
                owners[block - first] = tenants[sequence.request.scope.tenant]
    return KVMapPart(
        first=first, kv_blocks=pool.num_blocks, states=bytes(states), owners=bytes(owners), tenants=list(tenants)
    )


def block_path(memory: KVCacheManager, running: Iterable[Sequence], block: int) -> KVPath | None:
    """A block with its path in the prefix cache, the block itself first; None where there is no such block."""
    if not 0 <= block < memory.pool.num_blocks:
        return None
    node, adapter = memory.cache.nodes.get(block), memory.adapters.blocks.get(block)
    if node is not None:
        depth, path = _path(memory, node)
        holders = [each for each in running if len(each.nodes) >= depth and each.nodes[depth - 1] is node]
        tenant, of_adapter = node.scope.tenant, node.scope.adapter
    else:
        held = memory.pool.references(block)
        depth, path = 0, [PathBlock(block, held, 0)]
        if adapter is None:
            holders = [each for each in running if block in each.blocks[len(each.nodes) :]]
        else:
            holders = [each for each in running if each.request.scope.adapter == adapter]
        tenant = holders[0].request.scope.tenant if holders and adapter is None else ""
        of_adapter = adapter or ""
    ids = list(dict.fromkeys(each.request.request_id for each in holders))
    return KVPath(
        block=block,
        tenant=tenant,
        adapter=of_adapter,
        is_adapter=adapter is not None,
        depth=depth,
        path=path,
        request_ids=ids[:MAX_PATH_REQUESTS],
    )


def _path(memory: KVCacheManager, node: PrefixNode) -> tuple[int, list[PathBlock]]:
    depth, path = 0, []
    each: PrefixNode | None = node
    while each is not None and each.parent is not None:  # a root holds no block
        if depth < MAX_PATH:
            path.append(PathBlock(each.block, memory.pool.references(each.block), len(each.children)))
        depth, each = depth + 1, each.parent
    return depth, path


class _Tenants(dict[str, int]):
    """Tenants of the blocks told, and their numbers."""

    def __missing__(self, name: str) -> int:
        place = min(len(self), OTHER_OWNERS)
        if place < OTHER_OWNERS:
            self[name] = place
        return place
