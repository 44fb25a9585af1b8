"""Block tables: how sequences come by their blocks, share them, write into them and give them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvarn.engine.errors import IntegrityError
from kvarn.engine.memory.adapters import AdapterResidency, AdapterStore
from kvarn.engine.memory.announced import AnnouncedTurns
from kvarn.engine.memory.block_pool import BlockPool
from kvarn.engine.memory.eviction import EvictionOrder
from kvarn.engine.memory.prefix_cache import PrefixCache, PrefixNode
from kvarn.engine.memory.snapshots import Snapshots
from kvarn.engine.memory.tiers import KVTiers
from kvarn.engine.plan import AdapterLoad, BlockCopy, BlockTransfer, BlockUpdate, StateSave
from kvarn.engine.request import Request, Sequence
from kvarn.engine.sessions.branch import Branch
from kvarn.engine.sessions.table import Sessions
from kvarn.shapes import BLOCK_SIZE
from kvarn.wire.sessions import SessionEvent, SessionNews


def blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Computed tokens that a waiting sequence would find, and what it would still take."""

    num_computed_tokens: int  # tokens it need not compute
    blocks: list[int]  # blocks that it would share
    nodes: list[PrefixNode]
    loads: list[bytes]
    """Names of the blocks behind those, which are loaded from beyond the device."""
    blocks_needed: int
    """Available blocks that it uses up: fresh ones, the copy of a shared one, revived idle ones, and those of its
    adapter."""
    shared_tokens: int
    """Its first tokens whose blocks the prefix cache holds: of a model with recurrent states perhaps more than it need
    not compute."""


@dataclass(frozen=True, slots=True)
class BlocksAhead:
    """Blocks in steps to come, which are numbered from 0 on."""

    taken: list[int]
    """Steps before which a free block is taken, in order."""
    filled: list[int]
    """Steps after which a block is entered into the prefix cache, in order."""
    names: list[bytes]
    """Names of those blocks."""
    sure: int
    """Steps for which this is sure: after them blocks may go, or what is entered may be there already."""


class KVCacheManager:
    """The paged KV cache of one replica, as bookkeeping."""

    def __init__(
        self,
        num_blocks: int,
        prefix_cache: bool,
        namespace: str = "",
        tiers: KVTiers | None = None,
        adapters: AdapterStore | None = None,
        num_snapshots: int | None = None,
        eviction: Callable[[Mapping[int, PrefixNode]], EvictionOrder] | None = None,
    ) -> None:
        """`eviction` makes the order in which idle blocks go, from the nodes of cached ones; None: LRU."""
        self.pool = BlockPool(num_blocks)
        self.snapshots = None if num_snapshots is None else Snapshots(num_snapshots if prefix_cache else 0)
        """Snapshots of recurrent states; None where the model has none."""
        self.cache = PrefixCache(self.pool, namespace, self._removed)
        self.sessions = Sessions()
        if eviction is not None:
            self.pool.idle = eviction(self.cache.nodes)
        self.tiers = tiers  # blocks beyond the device; None where none are kept
        self.announced = None if tiers is None else AnnouncedTurns(tiers)
        self.adapters = AdapterResidency(self.pool, adapters)
        self._reuse = prefix_cache

    # Sessions ---------------------------------------------------------------------------------------------------------

    def begin_turn(self, request: Request, now: float) -> int:
        """A request has come: find the conversation that it goes on with. Returns the tokens of that one's own path
        that are cached."""
        turn = request.session
        if turn is None or not self._reuse:
            return 0
        found = self.cache.match(request.prompt, request.scope, len(request.prompt), request.block_names)
        blocks = len(request.prompt) // BLOCK_SIZE
        request.branch, spent = self.sessions.begin(turn, request.scope.tenant, found, blocks, now)
        if spent is not None:
            self.pool.idle.spend(spent)
        return len(found) * BLOCK_SIZE if found and found[-1].branch is request.branch else 0

    def end_turn(self, request: Request, now: float) -> None:
        if request.session is None or request.branch is None:
            return
        branch, request.branch = request.branch, None
        if self.announced is not None:
            self.announced.end(branch)
        self.sessions.end(request.session, request.request_id, branch, now)
        if branch.has_ended and branch.tip is not None:
            self.pool.idle.spend(branch.tip)

    def take_news(self, news: SessionNews, now: float) -> None:
        for branch in self.sessions.note(news, now):
            if branch.has_ended and branch.tip is not None:
                self.pool.idle.spend(branch.tip)
            if self.announced is not None and news.event is SessionEvent.RETURNS:
                self.announced.fetch(branch, now)

    def _claim(self, request: Request, nodes: list[PrefixNode]) -> None:
        """A prompt begins with this path. Before a common node all are common, before one of a branch all are its own
        or common."""
        mine = request.branch or Branch.ONCE
        for node in reversed(nodes):
            theirs = node.branch
            if theirs is Branch.COMMON or (theirs is mine and mine is not Branch.ONCE):
                break
            node.branch = mine if theirs is None or theirs.has_ended else Branch.COMMON

    def _removed(self, node: PrefixNode) -> None:
        if self.snapshots is not None:
            self.snapshots.forget(node)
        self.sessions.removed(node)
        self.pool.idle.removed(node)

    # Prefixes ---------------------------------------------------------------------------------------------------------

    def match_prefix(self, sequence: Sequence) -> PrefixMatch:
        """The best start for a waiting sequence: its sibling's prompt, or the longest prefix that is cached or stored.

        At least the last known token is left to compute, since the next one is drawn from its logits. While prompt
        log-probabilities are outstanding, their positions are left to compute too.
        """
        request, limit = sequence.request, self._reusable(sequence)
        nodes = self._cached(sequence, limit)
        matched = len(nodes) * BLOCK_SIZE
        if self.snapshots is not None:
            nodes = nodes[: self.snapshots.num_usable(nodes)]
        cached, blocks = len(nodes) * BLOCK_SIZE, [node.block for node in nodes]
        computed, loads = cached, self._loadable(sequence, limit, len(nodes))
        if loads:
            known = sequence.num_computed_tokens or len(sequence.fetch.block_names) * BLOCK_SIZE
            computed = min(cached + len(loads) * BLOCK_SIZE, known, limit)
        leader = request.sequences[0]
        shared = sequence.num_prompt - 1
        can_fork = (
            self.snapshots is None  # the leader's states stand for more tokens
            and sequence is not leader
            and leader.slot is not None
            and leader.num_computed_tokens >= sequence.num_prompt
        )
        if can_fork and shared > computed:
            blocks, nodes, loads = leader.blocks[: blocks_for(shared)], leader.nodes[: shared // BLOCK_SIZE], []
            computed = cached = shared
        return PrefixMatch(computed, blocks, nodes, loads, self._needed(sequence, blocks, cached), matched)

    def _cached(self, sequence: Sequence, limit: int) -> list[PrefixNode]:
        if not self._reuse:
            return []
        request = sequence.request
        return self.cache.match(sequence.tokens, request.scope, limit, request.block_names)

    def _reusable(self, sequence: Sequence) -> int:
        """Tokens of a waiting sequence that need not be computed, if their keys and values are anywhere."""
        request = sequence.request
        if request.wants_prompt_logprobs and sequence.leads:
            return len(request.prompt_logprobs) - 1
        return sequence.num_tokens - 1

    def _loadable(self, sequence: Sequence, limit: int, first: int) -> list[bytes]:
        if self.tiers is None:
            return []
        if self._reuse:
            self.tiers.name(sequence, limit)
        known = sequence.num_computed_tokens or limit // BLOCK_SIZE * BLOCK_SIZE
        return self.tiers.loadable(sequence, first, blocks_for(min(known, limit)))

    def prefetch(self, sequence: Sequence, now: float) -> None:
        if self.tiers is None or sequence.fetch.tried or now < sequence.fetch.again_s:
            return
        limit = self._reusable(sequence)
        if self._reuse:
            self.tiers.name(sequence, limit)
        first = len(self._cached(sequence, limit))
        self.tiers.begin_fetch(sequence, first, blocks_for(limit), now)

    def must_wait(self, sequence: Sequence, now: float) -> bool:
        """Whether a sequence that could start should not do so yet, since blocks of it are on their way here."""
        if self.tiers is None:
            return False
        self.prefetch(sequence, now)
        return self.tiers.must_wait(sequence, now)

    def count_lookup(self, sequence: Sequence) -> None:
        if self.tiers is not None and self._reuse:
            cached = len(sequence.nodes) * BLOCK_SIZE
            self.tiers.queries += max(0, sequence.num_prompt - cached)
            self.tiers.hits += sequence.num_computed_tokens - cached

    def leave_queue(self, sequence: Sequence) -> None:
        if self.tiers is not None:
            self.tiers.end_fetch(sequence)

    def _needed(self, sequence: Sequence, blocks: list[int], computed: int) -> int:
        revived = self.pool.count_idle(blocks)
        adapter = self.adapters.blocks_needed(sequence.request.scope.adapter)
        return blocks_for(sequence.num_tokens) - computed // BLOCK_SIZE + revived + adapter

    def place(self, sequence: Sequence, match: PrefixMatch) -> None:
        """Give the sequence the blocks it shares and loads. Nothing may have been allocated since `match`."""
        if match.nodes and sequence.leads and not sequence.last_step:
            self.pool.idle.reused(match.nodes[-1], self.pool.now)
            self._claim(sequence.request, match.nodes)
        self.pool.acquire_all(match.blocks)
        self.adapters.acquire(sequence.request.scope.adapter)
        sequence.num_computed_tokens = match.num_computed_tokens
        sequence.blocks = list(match.blocks)
        sequence.nodes = list(match.nodes)
        if self.snapshots is not None:
            self.snapshots.start(sequence, match.nodes, match.shared_tokens)
        sequence.fetch.block_names = []
        for name in match.loads:
            assert self.tiers is not None, "only blocks of a tier are loaded"
            if not self.tiers.connector.reserve(name):  # evicted since it was looked for
                sequence.num_computed_tokens = min(match.num_computed_tokens, len(sequence.blocks) * BLOCK_SIZE)
                break
            block = self.pool.allocate()
            sequence.blocks.append(block)
            self.tiers.load(block, name)
        sequence.pending_updates = [BlockUpdate(index, block) for index, block in enumerate(sequence.blocks)]

    def is_reserved(self, sequence: Sequence, end: int) -> bool:
        """Whether positions `num_computed_tokens` to `end - 1` lie in one writable block: then `reserve` need not be
        asked."""
        index, blocks = sequence.num_computed_tokens // BLOCK_SIZE, sequence.blocks
        return end <= (index + 1) * BLOCK_SIZE and index < len(blocks) and self.pool.is_writable(blocks[index])

    def reserve(self, sequence: Sequence, end: int, copies: list[BlockCopy]) -> None:
        """Make positions `num_computed_tokens` to `end - 1` writable: append blocks, copy shared ones before the
        write. The copies that the plan must make are appended to `copies`. Where it raises `OutOfBlocksError`,
        what could be had is kept: call again with the same arguments once there is room."""
        blocks, pool, needed = sequence.blocks, self.pool, blocks_for(end)
        for index in range(sequence.num_computed_tokens // BLOCK_SIZE, min(needed, len(blocks))):
            if not pool.is_writable(blocks[index]):
                shared, own = blocks[index], pool.allocate()
                copies.append(BlockCopy(shared, own))
                self._replace(sequence, index, own)
        while (first := len(blocks)) < needed:
            blocks += pool.take(needed - first)
            sequence.pending_updates += map(BlockUpdate, range(first, len(blocks)), blocks[first:])

    def can_extend(self, sequence: Sequence, end: int) -> bool:
        return blocks_for(end) - len(sequence.blocks) <= self.pool.num_available

    def publish(self, sequence: Sequence) -> None:
        """Enter newly computed full blocks, of prompt and answer alike, into the prefix cache.

        Where the cache already has a block with these tokens, the sequence adopts it and frees its own, so that two
        sequences never hold the same tokens twice, and a holder of a cached block holds the path to it.
        """
        nodes, num_full = sequence.nodes, sequence.num_computed_tokens // BLOCK_SIZE
        if len(nodes) == num_full or not self._reuse:
            return
        scope, branch = sequence.request.scope, sequence.request.branch or Branch.ONCE
        tokens, names, blocks = sequence.tokens, sequence.request.block_names, sequence.blocks
        node = nodes[-1] if nodes else None
        for index in range(len(nodes), num_full):
            key = tuple(tokens[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]) if names is None else names[index]
            node = self.cache.insert(scope, node, key, blocks[index])
            if node.block != blocks[index]:
                self.pool.acquire(node.block)
                self._replace(sequence, index, node.block)
            elif self.tiers is not None:
                self.tiers.store(node.block, node.hash, scope)
            if node.branch is not branch:
                node.branch = branch if node.branch is None else Branch.COMMON
            nodes.append(node)
        if self.snapshots is not None:
            self.snapshots.publish(sequence)

    def blocks_ahead(self, sequences: list[Sequence], steps: int) -> BlocksAhead:
        """Changes of blocks by the next steps, in each of which each of these sequences has a token computed."""
        taken, filled, parents, sure = list[int](), list[tuple[int, bytes]](), set[PrefixNode](), steps
        for sequence in sequences:
            computed, nodes, names = sequence.num_computed_tokens, sequence.nodes, sequence.request.block_names
            taken += range(len(sequence.blocks) * BLOCK_SIZE - computed, steps, BLOCK_SIZE)
            fills = range((len(nodes) + 1) * BLOCK_SIZE - computed - 1, steps, BLOCK_SIZE)
            if not self._reuse or not fills:
                continue
            if names is None or not nodes or nodes[-1] in parents or names[len(nodes)] in nodes[-1].children:
                sure = min(sure, fills[0])
                continue
            parents.add(nodes[-1])
            filled += zip(fills, names[len(nodes) :], strict=False)
        taken.sort()
        filled.sort()
        if len(taken) > self.pool.num_free:
            sure = min(sure, taken[self.pool.num_free])
        return BlocksAhead(taken, [step for step, _ in filled], [name for _, name in filled], sure)

    def plan_saves(self, rows: Mapping[Sequence, int]) -> dict[Sequence, list[StateSave]]:
        return {} if self.snapshots is None else self.snapshots.plan_saves(rows)

    def release(self, sequence: Sequence) -> None:
        self.adapters.release(sequence.request.scope.adapter)
        if sequence.request.branch is not None and sequence.nodes:
            self.sessions.set_tip(sequence.request.branch, sequence.nodes[-1])
            if self.announced is not None:
                self.announced.remember(sequence.request.branch, sequence.nodes)
        self.pool.release_all(reversed(sequence.blocks))
        if self.snapshots is not None:
            self.snapshots.release(sequence)
        sequence.forget_memory()

    def suspend(self, sequence: Sequence) -> None:
        """Release a preempted sequence's blocks, last to first.

        When it runs again, the KV of its tokens is recomputed, except for blocks that the prefix cache or the tiers
        still hold. With tiers, the next step stores the released blocks before anything is written into them.
        """
        if self.tiers is None:
            self.release(sequence)
            return
        # Positions from the last known token on belong to steps in flight, whose results are dropped.
        computed = min(sequence.num_computed_tokens, len(sequence.tokens) - 1)
        names = self.tiers.suspend(sequence, computed)
        self.release(sequence)
        sequence.num_computed_tokens, sequence.fetch.block_names = computed, names

    @property
    def has_parts(self) -> bool:
        """Whether steps do more with memory than to take blocks of the cache: tiers, snapshots, adapters."""
        return self.tiers is not None or self.snapshots is not None or self.adapters.may_load

    @property
    def has_transfers(self) -> bool:
        return self.adapters.has_loads or (self.tiers is not None and self.tiers.has_transfers)

    def drain_transfers(self) -> tuple[list[BlockTransfer], list[BlockTransfer], list[AdapterLoad], list[str]]:
        stores, loads = self.tiers.drain() if self.tiers is not None else ([], [])
        return stores, loads, *self.adapters.drain()

    def forget(self, tenant: str) -> None:
        """Delete a tenant's blocks wherever they are, but for those that its running sequences hold."""
        self.cache.forget(tenant)
        self.sessions.forget(tenant)
        if self.tiers is not None and self.announced is not None:
            self.announced.forget_tenant(tenant)
            self.tiers.connector.forget(tenant)

    def _replace(self, sequence: Sequence, index: int, block: int) -> None:
        self.pool.release(sequence.blocks[index])
        sequence.blocks[index] = block
        sequence.pending_updates.append(BlockUpdate(index, block))

    def check_integrity(self, running: list[Sequence]) -> None:
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
        self.adapters.check_integrity(Counter(each.request.scope.adapter for each in running), references)
        self.pool.check_integrity(references)
        if self.snapshots is not None:
            self.snapshots.check_integrity(running)
        self.cache.check_integrity()
        self.pool.idle.check_integrity()
        self.sessions.check_integrity(self.cache.nodes)
