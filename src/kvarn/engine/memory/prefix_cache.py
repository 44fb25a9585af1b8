"""Reuse of computed blocks: a radix tree whose edges are the 16 tokens of a block.

A node is one full, computed block; its path from the root spells every token before it. There is a root for each
(tenant, cache salt, adapter), so a prompt of one tenant or salt can never meet a block of another. Lookup follows the
tokens themselves; the chained hash is only the block's *name* in other processes, so a collision could never leak a
block.

A sequence that holds a block of the tree holds the whole path to it. Sequences release their blocks last to first, so
among idle blocks a child always comes before its parent: the block released longest ago is always a leaf.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from kvarn.engine.errors import IntegrityError
from kvarn.engine.memory.block_inventory import BlockInventory
from kvarn.engine.memory.block_pool import BlockPool
from kvarn.shapes import BLOCK_SIZE
from kvarn.wire.block_names import PrefixScope, chain_hash, root_hash

if TYPE_CHECKING:
    from kvarn.engine.sessions.branch import Branch


BlockKey: TypeAlias = tuple[int, ...] | bytes
"""A block below the one before it: its tokens or, where nobody knows them, its name (`NamedPrompt`)."""


class PrefixNode:
    """One cached block. A root has no block and no parent."""

    __slots__ = (
        *("_name", "block", "branch", "children", "depth", "key", "parent", "scope", "scope_number", "snapshot"),
    )
    depth: int

    def __init__(
        self,
        scope: PrefixScope,
        scope_number: int,
        parent: PrefixNode | None,
        key: BlockKey,
        block: int,
        name: bytes | None = None,
    ) -> None:
        self.scope = scope
        self.scope_number = scope_number
        self.parent = parent
        self.key = key
        self.block = block
        self._name = name
        self.depth = 0 if parent is None else parent.depth + 1  # number of blocks from the root up to this one
        self.branch: Branch | None = None
        """The conversation whose path it lies on, or a mark (`kvarn.engine.sessions.branch`)."""
        self.children: dict[BlockKey, PrefixNode] = {}
        self.snapshot: int | None = None
        """Snapshot of the recurrent states after its tokens (`kvarn.engine.memory.snapshots`), if there is one."""

    @property
    def hash(self) -> bytes:
        """The block's name in other processes, computed when it is first asked for."""
        unnamed: list[PrefixNode] = []
        node = self
        while node._name is None:
            assert node.parent is not None, "a root has its name"
            unnamed.append(node)
            node = node.parent
        name = node._name
        for node in reversed(unnamed):
            name = node._name = node.key if isinstance(node.key, bytes) else chain_hash(name, node.key)
        return name


class PrefixCache:
    """The tree. It owns no memory: the pool counts holders. `on_removal` is told of each node that leaves the tree."""

    def __init__(
        self, pool: BlockPool, namespace: str = "", on_removal: Callable[[PrefixNode], None] | None = None
    ) -> None:
        self._pool = pool
        self._namespace = namespace
        self._roots: dict[PrefixScope, PrefixNode] = {}
        self._by_block: dict[int, PrefixNode] = {}
        self.scopes: dict[int, PrefixScope] = {}
        """Scopes of which blocks are cached, by their numbers, from 1 on."""
        self.scope_numbers = array("I", bytes(4 * pool.num_blocks))
        """Number of the scope of each cached block; 0: the block is not cached."""
        self._free_numbers: list[int] = []
        self.evictions = 0
        self._held: BlockInventory | None = None
        self._on_removal = on_removal

    def __len__(self) -> int:
        return len(self._by_block)

    @property
    def nodes(self) -> Mapping[int, PrefixNode]:
        return self._by_block

    def match(
        self, tokens: list[int], scope: PrefixScope, max_tokens: int, names: list[bytes] | None = None
    ) -> list[PrefixNode]:
        """The longest cached path that begins `tokens`, of at most `max_tokens` tokens. `names`: of its blocks, in
        place of the tokens."""
        nodes: list[PrefixNode] = []
        node = self._roots.get(scope)
        end = min(max_tokens, len(tokens))
        for start in range(0, end - BLOCK_SIZE + 1, BLOCK_SIZE):
            if node is None:
                break
            node = node.children.get(
                tuple(tokens[start : start + BLOCK_SIZE]) if names is None else names[start // BLOCK_SIZE]
            )
            if node is not None:
                nodes.append(node)
        return nodes

    def insert(self, scope: PrefixScope, parent: PrefixNode | None, key: BlockKey, block: int) -> PrefixNode:
        """Name a held, full, computed block below `parent` (None: the scope's root), whose path the caller holds.
        Returns the node of this key: one that was there before makes the caller's own block superfluous."""
        if parent is None:
            parent = self._roots.get(scope)
            if parent is None:
                parent = self._add_root(scope)
        existing = parent.children.get(key)
        if existing is not None:
            return existing
        number = parent.scope_number
        node = parent.children[key] = PrefixNode(scope, number, parent, key, block)
        self._by_block[block] = node
        self.scope_numbers[block] = number
        self._pool.cache(block, self)
        if self._held is not None:
            self._held.add(node.hash)
        return node

    def _add_root(self, scope: PrefixScope) -> PrefixNode:
        number = self._free_numbers.pop() if self._free_numbers else len(self.scopes) + 1
        root = PrefixNode(scope, number, None, (), -1, root_hash(scope, self._namespace))
        self._roots[scope], self.scopes[number] = root, scope
        return root

    def evict(self, block: int) -> None:
        node = self._by_block.pop(block)
        if node.children:
            raise IntegrityError(f"block {block} was to be evicted before the blocks that follow it")
        self._unlink(node)
        self._pool.uncache(block)
        self.evictions += 1

    def forget(self, tenant: str) -> None:
        """Free a tenant's idle blocks. What follows a block that is held is held too, or was not released yet."""
        roots = [root for scope, root in self._roots.items() if scope.tenant == tenant]
        for node in reversed(list(self._walk(roots))):  # what follows a block comes before it
            if not self._pool.references(node.block):
                del self._by_block[node.block]
                self._unlink(node)
                self._pool.uncache(node.block)

    def names(self) -> Iterator[bytes]:
        return (node.hash for node in self._by_block.values())

    def report_to(self, held: BlockInventory | None) -> None:
        self._held = held
        if held is not None:
            for name in self.names():
                held.add(name)

    def _unlink(self, node: PrefixNode) -> None:
        if self._held is not None:
            self._held.drop(node.hash)
        parent = node.parent
        if parent is None:
            raise IntegrityError("a root holds no block and cannot be evicted")
        del parent.children[node.key]
        self.scope_numbers[node.block] = 0
        if self._on_removal is not None:
            self._on_removal(node)
        if parent.parent is None and not parent.children:
            del self._roots[parent.scope], self.scopes[parent.scope_number]
            self._free_numbers.append(parent.scope_number)

    def check_integrity(self) -> None:
        found = 0
        for node in self._walk(self._roots.values()):
            found += 1
            number = self.scope_numbers[node.block]
            if number != node.scope_number or self.scopes[number] != node.scope:
                raise IntegrityError(f"block {node.block} is counted to another scope than its own")
            if self._by_block.get(node.block) is not node or not self._pool.is_cached(node.block):
                raise IntegrityError(f"block {node.block} is in the tree, but not in the books")
            parent = node.parent
            if parent is None or node.hash != (
                node.key if isinstance(node.key, bytes) else chain_hash(parent.hash, node.key)
            ):
                raise IntegrityError(f"block {node.block} does not carry the hash of its path")
            if parent.parent is not None and self._pool.references(parent.block) < self._pool.references(node.block):
                raise IntegrityError(f"block {node.block} is held by a sequence that does not hold its parent")
        if found != len(self._by_block) or found != self._pool.num_blocks - self.scope_numbers.count(0):
            raise IntegrityError(f"the tree reaches {found} of {len(self._by_block)} cached blocks")

    def _walk(self, roots: Iterable[PrefixNode]) -> Iterator[PrefixNode]:
        stack = list(roots)
        while stack:
            for child in stack.pop().children.values():
                yield child
                stack.append(child)
