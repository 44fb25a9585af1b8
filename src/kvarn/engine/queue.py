"""Who goes next: priority tiers with ageing, then the tenant served least, then arrival.

Each tenant has one line, sorted by `arrival + priority * ageing`. That single, fixed key yields both orders that are
needed: at any moment the tiers of a line's entries only grow along it, and within a tier entries stand by the time at
which they came into that tier.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator

from kvarn.engine.errors import IntegrityError
from kvarn.engine.request import Sequence
from kvarn.engine.tenants import TenantAccount

_Entry = tuple[float, int, int, Sequence]


class _Line:
    """One tenant's waiting sequences."""

    __slots__ = ("account", "entries")

    def __init__(self, account: TenantAccount) -> None:
        self.account = account
        self.entries: list[_Entry] = []


class WaitingQueue:
    """Sequences that wait for a slot: new ones, siblings to be forked, and preempted ones.

    Finding the next costs O(tenants that wait); entering and leaving cost a binary search. Nothing scans all entries.
    """

    LOOK_AHEAD = 16
    """Entries of one tenant that are tried past one that does not fit."""

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._lines: dict[str, _Line] = {}
        self._by_priority: dict[int, int] = {}
        self._tokens_by_priority: dict[int, int] = {}
        self._size = 0
        self._last_counter = 0.0

    def __len__(self) -> int:
        return self._size

    def by_priority(self) -> dict[int, int]:
        """Waiting sequences by their requests' priority."""
        return dict(sorted(self._by_priority.items()))

    def tokens_by_priority(self) -> dict[int, int]:
        """Tokens that those have to compute where the prefix cache holds none of them."""
        return dict(sorted(self._tokens_by_priority.items()))

    def push(self, sequence: Sequence, *, new: bool = False) -> None:
        """Add a sequence. `new` where it comes from a client, not back from running.

        A tenant that had nothing waiting cannot have saved up credit: its counter is lifted to the least among
        those that wait, or to that of the tenant that left the queue last.
        """
        account = sequence.request.account
        line = self._lines.get(account.name)
        if line is None:
            if new:
                account.counter = max(account.counter, self._least_counter())
            line = self._lines[account.name] = _Line(account)
        insort(line.entries, self._entry(sequence))
        priority = sequence.request.priority
        self._by_priority[priority] = self._by_priority.get(priority, 0) + 1
        self._tokens_by_priority[priority] = self._tokens_by_priority.get(priority, 0) + sequence.num_tokens
        self._size += 1

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that waits."""
        account = sequence.request.account
        line = self._lines[account.name]
        del line.entries[bisect_left(line.entries, self._entry(sequence))]
        if not line.entries:
            del self._lines[account.name]
            self._last_counter = account.counter
        priority = sequence.request.priority
        self._by_priority[priority] -= 1
        self._tokens_by_priority[priority] -= sequence.num_tokens
        if not self._by_priority[priority]:
            del self._by_priority[priority], self._tokens_by_priority[priority]
        self._size -= 1

    def tier(self, sequence: Sequence, now: float) -> int:
        """Priority after ageing, never better than the best among all that wait."""
        request = sequence.request
        if len(self._by_priority) == 1 and request.priority in self._by_priority:
            return request.priority
        lifted = request.priority - int(max(0.0, now - request.arrival_s) / self._ageing_s)
        return max(lifted, min(self._by_priority, default=request.priority))

    @property
    def best_priority(self) -> int | None:
        """The best (lowest) priority among those that wait; no ageing lifts past it."""
        return min(self._by_priority, default=None)

    def first(self, now: float) -> Sequence | None:
        """The sequence whose turn it is."""
        return next(self.candidates(now), None)

    def candidates(self, now: float) -> Iterator[Sequence]:
        """Waiting sequences in the order in which they should start, counters read afresh after each.

        The caller may remove the sequence it was given before it asks for the next; one it leaves is passed over.
        """
        heap = [self._turn(line, 0, now) for line in self._lines.values()]
        heapq.heapify(heap)
        while heap:
            _, _, _, position, line = heapq.heappop(heap)
            entry = line.entries[position]
            yield entry[-1]
            if position < len(line.entries) and line.entries[position] is entry:
                position += 1
            if position < min(len(line.entries), self.LOOK_AHEAD):
                heapq.heappush(heap, self._turn(line, position, now))

    def _turn(self, line: _Line, position: int, now: float) -> tuple[int, float, int, int, _Line]:
        sequence = line.entries[position][-1]
        return (self.tier(sequence, now), line.account.counter, sequence.request.order, position, line)

    def _entry(self, sequence: Sequence) -> _Entry:
        request = sequence.request
        return (request.arrival_s + request.priority * self._ageing_s, request.order, sequence.index, sequence)

    def _least_counter(self) -> float:
        return min((line.account.counter for line in self._lines.values()), default=self._last_counter)

    def check_integrity(self) -> None:
        """Recount the lines. Raises `IntegrityError`."""
        counted: dict[int, int] = {}
        tokens: dict[int, int] = {}
        for name, line in self._lines.items():
            if not line.entries or line.entries != sorted(line.entries, key=lambda entry: entry[:3]):
                raise IntegrityError(f"the line of tenant {name!r} is empty or out of order")
            for entry in line.entries:
                priority = entry[-1].request.priority
                counted[priority] = counted.get(priority, 0) + 1
                tokens[priority] = tokens.get(priority, 0) + entry[-1].num_tokens
                if entry[-1].slot is not None or entry[-1].blocks:
                    raise IntegrityError(f"{entry[-1].request.request_id} waits, but holds a slot or blocks")
        if counted != self._by_priority or sum(counted.values()) != self._size:
            raise IntegrityError(f"the queue counts {self._by_priority}, its lines hold {counted}")
        if tokens != self._tokens_by_priority:
            raise IntegrityError(f"the queue counts tokens {self._tokens_by_priority}, its lines hold {tokens}")
