"""Sequences that wait for a slot, in the fair order of `kvarn.fairness.queue`."""

from __future__ import annotations

from collections import Counter

from kvarn.engine.errors import IntegrityError
from kvarn.engine.request import Sequence
from kvarn.fairness.queue import FairQueue


class WaitingQueue(FairQueue[Sequence]):
    """New sequences, siblings to be forked, and preempted ones."""

    def __init__(self, ageing_s: float) -> None:
        super().__init__(ageing_s)
        self._tokens_by_priority = Counter[int]()

    def tokens_by_priority(self) -> dict[int, int]:
        """Tokens to compute by priority, where the prefix cache holds none of them."""
        return {priority: self._tokens_by_priority[priority] for priority in self.by_priority()}

    def push(self, sequence: Sequence, *, new: bool = False) -> None:
        """Add a sequence. `new` where it comes from a client, not back from running: a tenant that had nothing waiting
        has saved up no credit."""
        if new and sequence.account.name not in self._tenants:
            self.lift(sequence.account)
        super().push(sequence)
        self._tokens_by_priority[sequence.priority] += sequence.num_tokens

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that waits."""
        super().remove(sequence)
        self._tokens_by_priority[sequence.priority] -= sequence.num_tokens

    def check_integrity(self) -> None:
        """Recount the waiting sequences. Raises `IntegrityError`."""
        counted, tokens = Counter[int](), Counter[int]()
        for name, tenant in self._tenants.items():
            if not tenant.entries or tenant.entries != sorted(tenant.entries, key=lambda entry: entry[:2]):
                raise IntegrityError(f"the waiting sequences of tenant {name!r} are missing or out of order")
            for *_, sequence in tenant.entries:
                counted[sequence.priority] += 1
                tokens[sequence.priority] += sequence.num_tokens
                if sequence.slot is not None or sequence.blocks:
                    raise IntegrityError(f"{sequence.request.request_id} waits, but holds a slot or blocks")
        if counted != self._by_priority:
            raise IntegrityError(f"the queue counts {self._by_priority}, but holds {counted}")
        if tokens != self._tokens_by_priority:
            raise IntegrityError(f"the queue counts tokens {self._tokens_by_priority}, but holds {tokens}")
