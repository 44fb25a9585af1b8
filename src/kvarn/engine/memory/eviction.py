"""Which idle block goes when none is free. `kvarn.engine.memory.block_value` has the order that is used."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kvarn.engine.memory.prefix_cache import PrefixNode


class EvictionOrder(Protocol):
    """The idle blocks, and which of them goes next."""

    def __len__(self) -> int: ...

    def __contains__(self, block: int, /) -> bool: ...

    def add(self, block: int, now: float) -> None:
        """A block became idle. Those of a path come last to first."""

    def discard(self, block: int) -> None:
        """A block is idle no more."""

    def removed(self, node: PrefixNode) -> None:
        """A node has left the prefix cache: the one before it may be the end of its path now."""

    def spend(self, node: PrefixNode) -> None:
        """Nobody will come back to the path that ends with this node."""

    def reused(self, node: PrefixNode, now: float) -> None:
        """A prompt begins with the path to this node, which may be idle."""

    def first(self, now: float) -> int | None:
        """The block that goes next, which is evicted then; None where none is idle."""

    def check_integrity(self) -> None: ...


class LeastRecentlyUsed:
    def __init__(self) -> None:
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._idle)

    def __contains__(self, block: int) -> bool:
        return block in self._idle

    def add(self, block: int, now: float) -> None:
        self._idle[block] = None

    def discard(self, block: int) -> None:
        del self._idle[block]

    def removed(self, node: PrefixNode) -> None: ...

    def spend(self, node: PrefixNode) -> None: ...

    def reused(self, node: PrefixNode, now: float) -> None: ...

    def first(self, now: float) -> int | None:
        return next(iter(self._idle), None)

    def check_integrity(self) -> None: ...
