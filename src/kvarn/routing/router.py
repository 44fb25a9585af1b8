"""Chooses among the replicas of one model: what each has cached, what each has to do, and one decision after another.

Belongs to one event loop. A decision is made and its load reserved in one call, so that the next one sees it.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from kvarn.admission.engine_load import Reservation
from kvarn.config.engine import EngineConfig
from kvarn.routing.candidate import Candidate, RouteRequest
from kvarn.routing.index import MAX_REPLICAS, BlockIndex, new_block_index
from kvarn.routing.policies import POLICIES, READS_NAMES, Policy, Situation, usable
from kvarn.shapes import BLOCK_SIZE
from kvarn.wire.block_events import NAME_BYTES

MAX_SESSIONS = 65536
"""Conversations of which is remembered who answered them; the one that was silent longest is forgotten first."""


@dataclass(frozen=True, slots=True)
class ReplicaChoice:
    replica: str
    cached_tokens: int | None = None  # tokens of its prompt that are cached; None where the replica's cache is unknown
    reservation: Reservation | None = None  # None where there was nothing to choose

    def sent(self, now: float) -> None:
        if self.reservation is not None:
            self.reservation.sent(now)

    def end(self) -> None:
        if self.reservation is not None:
            self.reservation.end()


def choose_admitted(
    first: ReplicaChoice,
    choose: Callable[[set[str]], ReplicaChoice | None],
    refuses: Callable[[ReplicaChoice], bool],
) -> ReplicaChoice:
    """A choice or, where its replica would refuse the request, the next best that would not; the choice all the same
    where each would. `choose`: the best but for replicas of these names."""
    if not refuses(first):
        return first
    refusing = {first.replica}
    while (other := choose(refusing)) is not None:
        if not refuses(other):
            return other
        other.end()
        refusing.add(other.replica)
    return first


class ReplicaBlocks:
    """Cached blocks of one replica in the model's index: a `BlockWatcher`."""

    def __init__(self, candidate: Candidate, index: BlockIndex, number: int) -> None:
        self.number = number
        self.count = 0  # blocks that it has
        self._candidate = candidate
        self._index = index

    def replace(self, names: bytes) -> None:
        self._index.clear(self.number)
        self._index.insert(self.number, names)
        self.count = len(names) // NAME_BYTES
        self._candidate.knows_blocks = True

    def change(self, stored: bytes, removed: bytes) -> None:
        self._index.insert(self.number, stored)
        self._index.remove(self.number, removed)
        self.count += (len(stored) - len(removed)) // NAME_BYTES

    def forget(self) -> None:
        self._index.clear(self.number)
        self.count = 0
        self._candidate.knows_blocks = False


class Router:
    """The replicas of one model. `policy` names one of `POLICIES`."""

    def __init__(self, policy: str = "prefix", seed: int | None = None) -> None:
        self._policy: Policy = POLICIES[policy]
        self.reads_names = policy in READS_NAMES  # whether it needs to know what the replicas have cached
        self.candidates: dict[str, Candidate] = {}  # by the replica's name
        self._blocks: dict[str, ReplicaBlocks] = {}
        self._index: BlockIndex | None = None
        self._free = list(range(MAX_REPLICAS - 1, -1, -1))
        """Numbers of the index that no replica has; one given back is used again last."""
        self._sessions: OrderedDict[str, str] = OrderedDict()
        self._chance = random.Random(seed)
        self._decisions = 0

    def add(self, name: str, config: EngineConfig | None = None) -> ReplicaBlocks | None:
        """One more replica. What comes back shall hear which blocks it caches (None: not needed)."""
        candidate = self.candidates[name] = Candidate(name, config)
        if not self.reads_names or not self._free:
            return None  # chosen by its load alone
        if self._index is None:
            self._index = new_block_index()
        told = self._blocks[name] = ReplicaBlocks(candidate, self._index, self._free.pop())
        return told

    def remove(self, name: str) -> None:
        self.candidates.pop(name, None)
        blocks = self._blocks.pop(name, None)
        if blocks is not None:
            blocks.forget()
            self._free.insert(0, blocks.number)

    def known_blocks(self, name: str) -> int | None:
        """Blocks that a replica has told of; None where it does not tell."""
        blocks = self._blocks.get(name)
        return None if blocks is None else blocks.count

    def choose(self, request: RouteRequest, now: float) -> ReplicaChoice | None:
        """The replica that a request goes to, whose load it is from now on; None where none may have it."""
        candidates = usable(request, self.candidates.values(), now)
        if not candidates:
            return None
        if request.names and self._index is not None:
            held, blocks = self._index.match(request.names), self._blocks
            for each in candidates:
                known = blocks.get(each.name)
                each.cached_tokens = 0 if known is None else held[known.number] * BLOCK_SIZE
        else:
            for each in candidates:
                each.cached_tokens = 0
        session = request.session
        situation = Situation(now, self._chance, self._sessions.get(session) if session else None)
        picked = candidates[0] if len(candidates) == 1 else self._policy(request, candidates, situation)
        self._decisions += 1
        picked.picked = self._decisions
        picked.picked_total += 1
        picked.expected_cached_total += picked.cached_tokens
        if session:
            self._remember(session, picked.name)
        cached = picked.cached_tokens if picked.knows_blocks and request.names else None
        reservation = picked.reserve(picked.uncached(request.prompt_tokens), request.sequences)
        return ReplicaChoice(picked.name, cached, reservation)

    def _remember(self, session: str, name: str) -> None:
        self._sessions[session] = name
        self._sessions.move_to_end(session)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
