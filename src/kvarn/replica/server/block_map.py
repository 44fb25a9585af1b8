"""Picture of the KV blocks: who holds each, who could find it, how long it has been idle (`kvarn.wire.kv_map`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from kvarn.engine.memory.kv_cache_manager import KVCacheManager
from kvarn.engine.memory.prefix_cache import PrefixNode
from kvarn.engine.memory.tiers import KVTiers
from kvarn.engine.request import Sequence
from kvarn.wire.block_names import PrefixScope
from kvarn.wire.kv_map import (
    ADAPTER,
    AGES_S,
    CACHED,
    HOLDERS,
    MAX_PATH,
    MAX_PATH_REQUESTS,
    NO_OWNER,
    OTHER_OWNERS,
    KVMap,
    KVPath,
    KVTierBlocks,
    PathBlock,
)

_IDLE = 1
_STATES = np.searchsorted(HOLDERS, range(HOLDERS[-1] + 1), side="right").astype(np.uint8) - 1
_STATES[0] = 0
"""State of a block by the number of its holders, as far as they are told apart."""


def block_map(memory: KVCacheManager, running: Iterable[Sequence], now: float) -> KVMap:
    """States and tenants of all blocks: whole arrays at once, since no step runs meanwhile."""
    pool, tenants = memory.pool, _Tenants()
    held = np.frombuffer(pool.all_references(), np.uint32)
    numbers = np.frombuffer(memory.cache.scope_numbers, np.uint32)
    states = _STATES[np.minimum(held, HOLDERS[-1])]
    states[numbers > 0] |= CACHED
    states[list(memory.adapters.blocks)] |= ADAPTER
    idle = np.flatnonzero((held == 0) & (states > 0))
    ages = np.searchsorted(AGES_S, now - np.frombuffer(pool.released_s)[idle], side="right").astype(np.uint8)
    states[idle] |= _IDLE | ages << 4
    owners = _tenants_of_scopes(memory.cache.scopes, tenants)[numbers]
    own: list[int] = []
    their_tenants: list[int] = []
    for sequence in running:  # blocks that the cache does not name: those behind its path
        behind = sequence.blocks[len(sequence.nodes) :]
        own += behind
        their_tenants += [tenants[sequence.request.scope.tenant]] * len(behind)
    owners[own] = np.where(owners[own] == NO_OWNER, their_tenants, owners[own])
    return KVMap(states=states.tobytes(), owners=owners.tobytes(), tenants=list(tenants), tiers=_tiers(memory.tiers))


def _tenants_of_scopes(scopes: Mapping[int, PrefixScope], tenants: _Tenants) -> npt.NDArray[np.uint8]:
    """The place of a scope's tenant, by the scope's number."""
    places = np.full(max(scopes, default=0) + 1, NO_OWNER, np.uint8)
    for number, scope in scopes.items():
        places[number] = tenants[scope.tenant]
    return places


def _tiers(tiers: KVTiers | None) -> list[KVTierBlocks]:
    return [
        KVTierBlocks(name=name, blocks=tier.blocks, used_bytes=tier.used_bytes, capacity_bytes=tier.capacity_bytes)
        for name, tier in ({} if tiers is None else tiers.connector.stats()).items()
    ]


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
