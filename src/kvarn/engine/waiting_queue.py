"""The queue in which sequences wait for a slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from kvarn.engine.errors import IntegrityError
from kvarn.engine.request import Sequence
from kvarn.fairness.queue import FairQueue


class WaitingQueue(FairQueue[Sequence]):
    """Sequences that wait for a slot, in fair order: new ones, siblings to be forked, and preempted ones.

    `misses_target` says of the first of a request that did not begin yet whether it is too late for its target.
    """

    def __init__(self, ageing_s: float, misses_target: Callable[[Sequence, float], bool]) -> None:
        super().__init__(ageing_s)
        self._misses_target = misses_target
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
        super().remove(sequence)
        self._tokens_by_priority[sequence.priority] -= sequence.num_tokens

    def is_late(self, sequence: Sequence, now: float) -> bool:
        """See `FairQueue.is_late`. Where the first token is out, or about to be, nothing is late any more."""
        request = sequence.request
        if request.first_token_by_s is None or request.first_step_s is not None:
            return False
        request.is_late = request.is_late or self._misses_target(sequence, now)
        return request.is_late

    def check_integrity(self) -> None:
        counted, tokens, late = Counter[int](), Counter[int](), 0
        for name, tenant in self._tenants.items():
            ordered = all(each == sorted(each, key=lambda entry: entry[:2]) for each in (tenant.entries, tenant.late))
            if not ordered or not (tenant.entries or tenant.late):
                raise IntegrityError(f"the waiting sequences of tenant {name!r} are missing or out of order")
            late += len(tenant.late)
            for *_, sequence in (*tenant.entries, *tenant.late):
                counted[sequence.priority] += 1
                tokens[sequence.priority] += sequence.num_tokens
                if sequence.slot is not None or sequence.blocks:
                    raise IntegrityError(f"{sequence.request.request_id} waits, but holds a slot or blocks")
        if counted != self._by_priority:
            raise IntegrityError(f"the queue counts {self._by_priority}, but holds {counted}")
        if late != self.num_late:
            raise IntegrityError(f"the queue counts {self.num_late} late sequences, but holds {late}")
        if tokens != self._tokens_by_priority:
            raise IntegrityError(f"the queue counts tokens {self._tokens_by_priority}, but holds {tokens}")
