"""Books of a tier whose blocks stand in segments: which block is where, and which segment goes for others.

A segment holds blocks of one tenant, is written at its end only and deleted whole. Room is made by whole segments, the
least recently used first; within its share, by the tenant's own. Where contents are, a subclass says: `DiskTier` has
files, and a modelled tier nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvarn.engine.memory.block_inventory import BlockInventory
from kvarn.kvstore.record import EVICTED, BadBlockError, KVStoreError, tenant_digest
from kvarn.kvstore.tier import StoredBlock

if TYPE_CHECKING:
    from kvarn.kvstore.keys import TenantKey

_SEGMENT_BYTES = 256 * 1024 * 1024
_SEGMENTS = 16
"""Into so many segments, at least, a tenant's share is divided: so much of it goes at once."""


class SegmentOwner:
    """A tenant."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.segments: dict[Segment, None] = {}
        self.next_number = 1
        self.key: TenantKey | None = None  # encrypts its contents

    @property
    def num_bytes(self) -> int:
        return sum(segment.num_bytes for segment in self.segments)


class Segment:
    """Records of equal size, one after the other."""

    def __init__(self, owner: SegmentOwner, number: int, record_bytes: int) -> None:
        self.owner = owner
        self.number = number
        self.record_bytes = record_bytes
        self.names: list[bytes | None] = []  # name of each record's block; None where it is unusable
        self.live = 0
        """Records that are the ones to read for their names."""

    @property
    def num_bytes(self) -> int:
        return len(self.names) * self.record_bytes


class SegmentTier:
    """A `Tier` without contents. One thread may write while others read and ask.

    Args:
        record_bytes: Bytes that a block takes here.
        capacity_bytes: Bytes of all segments at most; `tenant_bytes`: of one tenant's.

    Raises:
        KVStoreError: There is no room for a block.
    """

    label = "disk"

    def __init__(self, record_bytes: int, capacity_bytes: int, tenant_bytes: int | None = None) -> None:
        self.record_bytes = record_bytes
        self.capacity_bytes = capacity_bytes
        self.evictions = 0
        self.unusable = 0
        """Records found at the start that cannot be used: torn, damaged, or of a tenant whose key is gone."""
        self._tenant_bytes = min(capacity_bytes, tenant_bytes or capacity_bytes)
        if record_bytes > self._tenant_bytes:
            raise KVStoreError(
                f"kv_tiers.disk_gib has no room for one block of {record_bytes} bytes (times kv_tiers.tenant_share"
                "): raise it"
            )
        self._segment_records = max(1, min(_SEGMENT_BYTES, self._tenant_bytes // _SEGMENTS) // record_bytes)
        self._lock = threading.Lock()
        """Guards the books below. Contents are read and written without it."""
        self._places: dict[bytes, tuple[Segment, int]] = {}
        self._held: BlockInventory | None = None
        self._owners: dict[bytes, SegmentOwner] = {}
        self._used: dict[Segment, None] = {}  # all segments, the least recently used first

    # Contents, where a subclass has some ------------------------------------------------------------------------------

    def _prepare(self, owner: SegmentOwner) -> None:
        """A tenant's first block is about to be written."""

    def _append(self, segment: Segment, blocks: Sequence[StoredBlock]) -> None:
        """Write blocks behind those of the segment. On OSError none of them was kept."""

    def _read(self, segment: Segment, place: int, block: tuple[bytes, str, bytes], into: memoryview) -> None:
        """Read and verify the block of a name, a tenant and a scope. Raises `BadBlockError` or OSError."""

    def _remove(self, segment: Segment) -> None:
        """Remove a segment's contents."""

    # A tier -----------------------------------------------------------------------------------------------------------

    def __contains__(self, name: bytes) -> bool:
        return name in self._places

    def __len__(self) -> int:
        return len(self._places)

    @property
    def num_bytes(self) -> int:
        with self._lock:
            return sum(segment.num_bytes for segment in self._used)

    def read(self, name: bytes, tenant: str, scope: bytes, into: memoryview) -> None:
        """See `Tier`."""
        with self._lock:
            if name not in self._places:
                raise BadBlockError(EVICTED)
            segment, place = self._places[name]
            self._use(segment)
        try:
            self._read(segment, place, (name, tenant, scope), into)
        except (BadBlockError, OSError):
            with self._lock:
                if self._places.get(name) == (segment, place):
                    self._forget_place(name)
                    segment.live -= 1
            raise

    def write(self, tenant: str, blocks: Sequence[StoredBlock]) -> None:
        """See `Tier`."""
        digest = tenant_digest(tenant)
        owner = self._owners.get(digest) or self._add_owner(digest)
        rest = [block for block in blocks if block.name not in self._places]
        while rest:
            segment = self._open_segment(owner)
            room = self._segment_records - len(segment.names)
            batch, rest = rest[:room], rest[room:]
            self._make_room(owner, len(batch) * self.record_bytes, segment)
            self._append(segment, batch)
            with self._lock:
                is_forgotten = self._owners.get(digest) is not owner  # meanwhile
                if not is_forgotten:
                    for block in batch:
                        self._enter(segment, block.name)
            if is_forgotten:
                self._remove(segment)
                return

    def forget(self, tenant: str) -> None:
        """No block of the tenant can be found any more."""
        with self._lock:
            owner = self._owners.pop(tenant_digest(tenant), None)
            if owner is not None:
                for segment in owner.segments:
                    self._leave(segment)

    def delete(self, tenant: str) -> None:
        """Forget a tenant and remove its contents; see `Tier`."""
        self.forget(tenant)

    def report_to(self, held: BlockInventory | None) -> None:
        with self._lock:
            self._held = held
            if held is not None:
                for name in self._places:
                    held.add(name)

    def close(self) -> None:
        return

    # The books --------------------------------------------------------------------------------------------------------

    def _add_owner(self, digest: bytes) -> SegmentOwner:
        owner = SegmentOwner(digest)
        self._prepare(owner)
        with self._lock:
            self._owners[digest] = owner
        return owner

    def _open_segment(self, owner: SegmentOwner) -> Segment:
        with self._lock:
            latest = max(owner.segments, key=lambda segment: segment.number, default=None)
            if latest is not None and len(latest.names) < self._segment_records:
                return latest
            number = owner.next_number
            owner.next_number += 1
            return Segment(owner, number, self.record_bytes)

    def _enter(self, segment: Segment, name: bytes) -> None:
        segment.names.append(name)
        segment.owner.segments[segment] = None
        self._used[segment] = None
        self._use(segment)
        self._note(segment, len(segment.names) - 1, name)

    def _note(self, segment: Segment, place: int, name: bytes) -> None:
        if name in self._places:
            self._places[name][0].live -= 1
        elif self._held is not None:
            self._held.add(name)
        self._places[name] = (segment, place)
        segment.live += 1

    def _use(self, segment: Segment) -> None:
        """It is the most recently used one."""
        for books in (self._used, segment.owner.segments):
            del books[segment]
            books[segment] = None

    def _make_room(self, owner: SegmentOwner, num_bytes: int, keep: Segment | None) -> None:
        """Delete segments until so many bytes more fit; all of one that holds nothing of use, before all."""
        with self._lock:
            victims = list(self._victims(owner, num_bytes, keep))
            for victim in victims:
                self.evictions += victim.live
                victim.owner.segments.pop(victim)
                self._leave(victim)
        for victim in victims:
            self._remove(victim)

    def _victims(self, owner: SegmentOwner, num_bytes: int, keep: Segment | None) -> Iterator[Segment]:
        own = owner.num_bytes + num_bytes - self._tenant_bytes
        total = sum(segment.num_bytes for segment in self._used) + num_bytes - self.capacity_bytes
        dead_first = sorted(self._used, key=lambda segment: segment.live > 0)
        for segment in dead_first:
            is_own = segment.owner is owner
            if segment is not keep and ((own > 0 and is_own) or total > 0):
                yield segment
                total -= segment.num_bytes
                own -= segment.num_bytes if is_own else 0

    def _leave(self, segment: Segment) -> None:
        del self._used[segment]
        for place, name in enumerate(segment.names):
            if name is not None and self._places.get(name) == (segment, place):
                self._forget_place(name)

    def _forget_place(self, name: bytes) -> None:
        del self._places[name]
        if self._held is not None:
            self._held.drop(name)
