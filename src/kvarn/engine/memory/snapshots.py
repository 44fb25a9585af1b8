"""Snapshots of recurrent states: where a prompt of a model that has such states may begin.

A layer with a recurrent state (linear attention) has one for each sequence, which stands for all of its tokens so far
and cannot go back to fewer. So the cached blocks of a prefix are of use only where a snapshot of the states was taken
at their end. The executor keeps the states of running sequences by slot; beside those it has room for some snapshots,
which are planned for here. Each belongs to a node of the prefix cache and goes with it; where all are taken, the one
used least recently is given up.

One is taken where later prompts may go on (as in Marconi, Pan et al. 2024):

* where a prompt parts from those cached before, unless it started there: two prompts with a common beginning promise a
  third;
* at the end of the last full block before a prompt's last token: for the same prompt, its other choices, and for what
  follows it;
* at the end of the last full block of an answer, where it moves on as the answer grows: for the conversation's next
  turn, and for the sequence itself when it was preempted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvarn.engine.errors import IntegrityError
from kvarn.engine.memory.prefix_cache import PrefixNode
from kvarn.engine.plan import NO_SNAPSHOT, StateSave
from kvarn.shapes import BLOCK_SIZE

if TYPE_CHECKING:
    from kvarn.engine.request import Sequence


@dataclass(slots=True)
class SnapshotRecord:
    start: int
    """The one that it starts from, or `NO_SNAPSHOT`: the plan with its first row copies it before it writes any."""
    wanted: list[int]  # positions inside the prompt at which one is taken
    answer_from: int
    """Behind this position one is taken at the end of each step's last full block."""
    pending: list[tuple[int, int]] = field(default_factory=list)
    """Positions, and the snapshots taken there, whose blocks are not in the prefix cache yet."""
    answer: PrefixNode | None = None
    """The last full block of the answer, whose snapshot is taken again for the next."""


class Snapshots:
    """Records of the snapshots 0 to `count - 1`."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = list(range(count - 1, -1, -1))
        self._kept: OrderedDict[int, PrefixNode] = OrderedDict()
        """Those in the prefix cache with their nodes, the one used least recently first."""

    def num_usable(self, nodes: list[PrefixNode]) -> int:
        """Number of the first nodes of a path that a prompt may begin with."""
        return next((count for count in range(len(nodes), 0, -1) if nodes[count - 1].snapshot is not None), 0)

    def start(self, sequence: Sequence, nodes: list[PrefixNode], shared_tokens: int) -> None:
        """A sequence starts with the tokens of `nodes`; the cache holds blocks of its first `shared_tokens`."""
        start = nodes[-1].snapshot if nodes else NO_SNAPSHOT
        assert start is not None, "a sequence starts where there is a snapshot"
        computed = len(nodes) * BLOCK_SIZE
        last = (sequence.num_prompt - 1) // BLOCK_SIZE * BLOCK_SIZE
        parting = {shared_tokens} if shared_tokens < last else set[int]()
        wanted = sorted(position for position in {*parting, last} if position > computed)
        sequence.snapshots = SnapshotRecord(start, wanted, max(last, computed))
        if nodes:
            self._kept.move_to_end(start)

    def plan_saves(self, rows: Mapping[Sequence, int]) -> dict[Sequence, list[StateSave]]:
        """The snapshots that are taken in a step that computes so many tokens of each sequence, as long as there is
        room."""
        saves: dict[Sequence, list[StateSave]] = {}
        for sequence, num_tokens in rows.items():
            record, first = _record(sequence), sequence.num_computed_tokens
            for position in _positions(record, first, first + num_tokens):
                snapshot = self._take(record if position > record.answer_from else None)
                if snapshot is not None:
                    record.pending.append((position, snapshot))
                    saves.setdefault(sequence, []).append(StateSave(position - first, snapshot))
        return saves

    def publish(self, sequence: Sequence) -> None:
        record, waiting = _record(sequence), []
        for position, snapshot in record.pending:
            if position > len(sequence.nodes) * BLOCK_SIZE:
                waiting.append((position, snapshot))
                continue
            node = sequence.nodes[position // BLOCK_SIZE - 1]
            if node.snapshot is not None:  # of another sequence with the same tokens
                self._free.append(snapshot)
                continue
            node.snapshot = snapshot
            self._kept[snapshot] = node
            if position > record.answer_from:
                record.answer = node
        record.pending = waiting

    def release(self, sequence: Sequence) -> None:
        """A sequence stops running: what it has not published is not kept."""
        self._free += [snapshot for _, snapshot in _record(sequence).pending]
        sequence.snapshots = None

    def forget(self, node: PrefixNode) -> None:
        if node.snapshot is not None:
            self._free.append(self._detach(node.snapshot))

    def _take(self, record: SnapshotRecord | None) -> int | None:
        """A snapshot to be written: of an answer (whose record is given) the one of its block before."""
        own = None if record is None or record.answer is None else record.answer.snapshot
        if own is not None:
            return self._detach(own)
        if self._free:
            return self._free.pop()
        oldest = next(iter(self._kept), None)
        return None if oldest is None else self._detach(oldest)

    def _detach(self, snapshot: int) -> int:
        self._kept.pop(snapshot).snapshot = None
        return snapshot

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        pending = [snapshot for sequence in running for _, snapshot in _record(sequence).pending]
        if sorted([*self._free, *self._kept, *pending]) != list(range(self._count)):
            raise IntegrityError("a snapshot of states is nowhere, or in two places")
        if any(node.snapshot != snapshot for snapshot, node in self._kept.items()):
            raise IntegrityError("a node of the prefix cache names another snapshot than the records")


def _record(sequence: Sequence) -> SnapshotRecord:
    assert sequence.snapshots is not None, "a running sequence of a model with recurrent states has a record"
    return sequence.snapshots


def _positions(record: SnapshotRecord, first: int, end: int) -> list[int]:
    """Positions at which a row that computes the tokens `first` to `end - 1` takes snapshots."""
    positions = [position for position in record.wanted if first < position <= end]
    last_full = end // BLOCK_SIZE * BLOCK_SIZE
    if last_full > max(first, record.answer_from):
        positions.append(last_full)
    return positions
