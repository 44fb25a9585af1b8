"""Who gives way when memory runs out, and how."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kvarn.engine.kv_memory import KVMemory
from kvarn.engine.request import Sequence


class Preemption(Protocol):
    """The seam for other ways to make room, such as swapping to host memory."""

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        """The running sequence that gives way. `running` is not empty."""
        ...

    def suspend(self, sequence: Sequence, memory: KVMemory) -> None:
        """Free the sequence's blocks. Its tokens stay; it must be able to go on from them later."""
        ...


class RecomputePreemption:
    """Drop the blocks and compute the tokens again later.

    The full blocks stay in the prefix cache for as long as nobody needs their memory, so often little is computed
    twice. Tokens do not change: the drawn ones are kept, and sampling depends on positions alone.
    """

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        """The lowest priority, then the latest arrival."""
        return max(running, key=lambda sequence: sequence.rank)

    def suspend(self, sequence: Sequence, memory: KVMemory) -> None:
        """Release all blocks."""
        memory.release(sequence)
