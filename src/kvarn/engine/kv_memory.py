"""Block tables: how sequences come by their blocks, share them, write into them and give them back."""

from __future__ import annotations

from dataclasses import dataclass

from kvarn.config.schema import BLOCK_SIZE
from kvarn.engine.block_pool import BlockPool
from kvarn.engine.errors import IntegrityError
from kvarn.engine.plan import BlockCopy, BlockTransfer, BlockUpdate, KVConnector
from kvarn.engine.prefix_cache import PrefixCache, PrefixNode, block_hashes
from kvarn.engine.request import Sequence


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-num_tokens // BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class Placement:
    """Computed tokens that a waiting sequence would find, and what it would still take."""

    num_computed_tokens: int
    """Tokens it need not compute."""
    blocks: list[int]
    """Blocks that it would share."""
    nodes: list[PrefixNode]
    stored_names: list[bytes]
    """Blocks behind those that are loaded from beyond the device."""
    blocks_needed: int
    """Available blocks that it uses up once all its known tokens are computed: fresh ones, the copy of a shared
    one, and idle ones that it revives."""


class KVMemory:
    """The paged KV cache of one replica, as bookkeeping: the block pool and the prefix cache together."""

    def __init__(
        self, num_blocks: int, prefix_cache: bool, namespace: str = "", connector: KVConnector | None = None
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self.cache = PrefixCache(self.pool, namespace)
        self._reuse = prefix_cache
        self._namespace = namespace
        self._connector = connector
        self._stores: list[BlockTransfer] = []
        self._loads: list[BlockTransfer] = []

    def placement(self, sequence: Sequence) -> Placement:
        """The best start for a waiting sequence: its stored blocks, its sibling's prompt or the longest cached prefix.

        At least the last known token is left to compute, since the next one is drawn from its logits. While prompt
        log-probabilities are outstanding, their positions are left to compute too.
        """
        request = sequence.request
        limit = sequence.num_tokens - 1
        if request.wants_prompt_logprobs and sequence.index == 0:
            limit = len(request.prompt_logprobs) - 1
        nodes = self.cache.match(sequence.tokens, request.scope, limit) if self._reuse else []
        computed, blocks = len(nodes) * BLOCK_SIZE, [node.block for node in nodes]
        names = self._loadable(sequence, limit, len(nodes))
        if names:
            return Placement(
                min(sequence.num_computed_tokens, limit), blocks, nodes, names, self._needed(sequence, blocks, computed)
            )
        leader = request.sequences[0]
        shared = sequence.num_prompt - 1
        can_fork = sequence.index > 0 and leader.slot is not None and leader.num_computed_tokens >= sequence.num_prompt
        if can_fork and shared > computed:
            computed, blocks, nodes = shared, leader.blocks[: blocks_for(shared)], leader.nodes[: shared // BLOCK_SIZE]
        return Placement(computed, blocks, nodes, [], self._needed(sequence, blocks, computed))

    def _loadable(self, sequence: Sequence, limit: int, first: int) -> list[bytes]:
        """Names of a preempted sequence's stored blocks from entry `first` on; none where one of them is not held."""
        if not sequence.stored_names or self._connector is None:
            return []
        names = sequence.stored_names[first : blocks_for(min(sequence.num_computed_tokens, limit))]
        return names if all(map(self._connector.contains, names)) else []

    def _needed(self, sequence: Sequence, blocks: list[int], computed: int) -> int:
        """Available blocks that it takes to hold all known tokens, where `blocks` are shared."""
        revived = sum(1 for block in blocks if not self.pool.references(block))
        return blocks_for(sequence.num_tokens) - computed // BLOCK_SIZE + revived

    def place(self, sequence: Sequence, placement: Placement) -> None:
        """Give the sequence the blocks it shares and loads. Nothing may have been allocated since `placement`."""
        for block in placement.blocks:
            self.pool.acquire(block)
        sequence.num_computed_tokens = placement.num_computed_tokens
        sequence.blocks = list(placement.blocks)
        sequence.nodes = list(placement.nodes)
        sequence.stored_names = []
        for name in placement.stored_names:
            block = self._allocate()
            sequence.blocks.append(block)
            self._loads.append(BlockTransfer(block, name))
        sequence.pending_updates = [BlockUpdate(index, block) for index, block in enumerate(sequence.blocks)]

    def is_reserved(self, sequence: Sequence, end: int) -> bool:
        """Whether positions `num_computed_tokens` to `end - 1` lie in one block that is writable already.

        So it is for fifteen decodes of sixteen, and `reserve` need not be asked.
        """
        index, blocks = sequence.num_computed_tokens // BLOCK_SIZE, sequence.blocks
        return end <= (index + 1) * BLOCK_SIZE and index < len(blocks) and self.pool.is_writable(blocks[index])

    def reserve(self, sequence: Sequence, end: int, copies: list[BlockCopy]) -> None:
        """Make positions `num_computed_tokens` to `end - 1` writable: append blocks, copy shared ones before the write.

        The copies that the plan must make are appended to `copies`.

        Raises:
            OutOfBlocksError: What could be had is kept; call again with the same arguments once there is room.
        """
        blocks = sequence.blocks
        first, last = sequence.num_computed_tokens // BLOCK_SIZE, (end - 1) // BLOCK_SIZE
        for index in range(first, last + 1):
            if index == len(blocks):
                blocks.append(self._allocate())
                sequence.pending_updates.append(BlockUpdate(index, blocks[index]))
            elif not self.pool.is_writable(blocks[index]):
                shared, own = blocks[index], self._allocate()
                copies.append(BlockCopy(shared, own))
                self._replace(sequence, index, own)

    def can_extend(self, sequence: Sequence, end: int) -> bool:
        """Whether the blocks for positions up to `end - 1` can be had without preempting anyone."""
        return blocks_for(end) - len(sequence.blocks) <= self.pool.num_available

    def publish(self, sequence: Sequence) -> None:
        """Enter newly computed full blocks, of prompt and answer alike, into the prefix cache.

        Where the cache already has a block with these tokens, the sequence adopts it and frees its own, so that two
        sequences never hold the same tokens twice, and whoever holds a cached block holds the path to it.
        """
        nodes, num_full = sequence.nodes, sequence.num_computed_tokens // BLOCK_SIZE
        if len(nodes) == num_full or not self._reuse:
            return
        scope = sequence.request.scope
        for index in range(len(nodes), num_full):
            key = tuple(sequence.tokens[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE])
            node = self.cache.insert(scope, nodes[-1] if nodes else None, key, sequence.blocks[index])
            if node.block != sequence.blocks[index]:
                self.pool.acquire(node.block)
                self._replace(sequence, index, node.block)
            nodes.append(node)

    def release(self, sequence: Sequence) -> None:
        """Take all blocks from a sequence, last to first; the prefix cache keeps what it names."""
        self.pool.release_all(reversed(sequence.blocks))
        sequence.forget_memory()

    def offload(self, sequence: Sequence) -> None:
        """Release a preempted sequence's blocks and have their contents stored: `placement` will find them again."""
        if self._connector is None:
            raise ValueError("blocks can only be stored by an engine that has a KV connector: pass it one")
        # Positions from the last known token on belong to steps in flight, whose results are dropped.
        computed = min(sequence.num_computed_tokens, len(sequence.tokens) - 1)
        names = block_hashes(sequence.tokens[:computed], sequence.request.scope, self._namespace)
        for block, name in zip(sequence.blocks, names, strict=False):
            if not self._connector.contains(name):
                self._stores.append(BlockTransfer(block, name))
        self.release(sequence)
        sequence.num_computed_tokens, sequence.stored_names = computed, names

    def drain_transfers(self) -> tuple[list[BlockTransfer], list[BlockTransfer]]:
        """Blocks to store and blocks to load, for the next plan."""
        stores, self._stores = self._stores, []
        loads, self._loads = self._loads, []
        return stores, loads

    def _allocate(self) -> int:
        if not self.pool.num_free:
            self.cache.evict()
        return self.pool.allocate()

    def _replace(self, sequence: Sequence, index: int, block: int) -> None:
        self.pool.release(sequence.blocks[index])
        sequence.blocks[index] = block
        sequence.pending_updates.append(BlockUpdate(index, block))

    def check_integrity(self, running: list[Sequence]) -> None:
        """Recount everything from the block tables. Raises `IntegrityError` at the first contradiction."""
        references: dict[int, int] = {}
        for sequence in running:
            if len(sequence.blocks) < blocks_for(sequence.num_computed_tokens):
                raise IntegrityError(f"{sequence.request.request_id}: computed tokens without a block")
            if len(sequence.nodes) * BLOCK_SIZE > len(sequence.tokens):
                raise IntegrityError(f"{sequence.request.request_id}: a block of unknown tokens is in the prefix cache")
            if len(set(sequence.blocks)) != len(sequence.blocks):
                raise IntegrityError(f"{sequence.request.request_id}: a block stands in its table twice")
            if [node.block for node in sequence.nodes] != sequence.blocks[: len(sequence.nodes)]:
                raise IntegrityError(f"{sequence.request.request_id}: its table strays from its path in the cache")
            for block in sequence.blocks:
                references[block] = references.get(block, 0) + 1
        self.pool.check_integrity(references)
        self.cache.check_integrity()
