"""Blocks on disk: segment files by tenant, found again after a restart by reading their headers.

    directory/model/digest/tenant/00000001.segment      and `key`, where blocks are encrypted

The digest is that of the model's weights and layout: when it changes, what was kept before is deleted, since no engine
can use it. A block can be found from when its batch is on disk (`fsync`); whatever ends the process before loses the
batch, nothing else. Room is made by whole files, the least recently used first; within its share, by the tenant's own.
"""

from __future__ import annotations

import fcntl
import logging
import re
import shutil
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvarn.engine.memory.block_inventory import BlockInventory
from kvarn.kvstore.keys import KEY_FILE, OVERHEAD_BYTES, MasterKeys, TenantKey
from kvarn.kvstore.record import (
    ENCRYPTED,
    EVICTED,
    HEADER_BYTES,
    BadBlockError,
    BlockId,
    KVStoreError,
    pack_header,
    tenant_digest,
)
from kvarn.kvstore.segment import SUFFIX, Segment, sync_directory
from kvarn.kvstore.tier import StoredBlock

_SEGMENT_BYTES = 256 * 1024 * 1024
_SEGMENTS = 16
"""Into so many segments, at least, a tenant's share is divided: so much of it goes at once."""

_DIGEST = re.compile("[0-9a-f]{32}")

log = logging.getLogger(__name__)


class _Tenant:
    def __init__(self, directory: Path, digest: bytes) -> None:
        self.directory = directory
        self.digest = digest
        self.segments: dict[Segment, None] = {}
        self.next_number = 1
        self.key: TenantKey | None = None

    @property
    def num_bytes(self) -> int:
        return sum(segment.num_bytes for segment in self.segments)


class DiskTier:
    """Blocks by name, in files. One thread may write while others read and ask.

    Args:
        directory: Directory for all models; the engine's own part of it is locked while it runs.
        digest: 16 bytes; see `BlockId.model`.
        block_bytes: Bytes of a block's contents.
        capacity_bytes: Bytes of all files at most; `tenant_bytes`: of one tenant's.
        keys: Encrypts; None leaves blocks as they are.

    Raises:
        KVStoreError: The directory cannot be used, or another engine uses it.
    """

    label = "disk"

    def __init__(
        self,
        directory: Path,
        name: str,
        digest: bytes,
        *,
        block_bytes: int,
        capacity_bytes: int,
        tenant_bytes: int | None = None,
        keys: MasterKeys | None = None,
    ) -> None:
        self.record_bytes = HEADER_BYTES + block_bytes + (0 if keys is None else OVERHEAD_BYTES)
        self.capacity_bytes = capacity_bytes
        self.evictions = 0
        self.unusable = 0
        """Records found at the start that cannot be used: torn, damaged, or of a tenant whose key is gone."""
        self._tenant_bytes = min(capacity_bytes, tenant_bytes or capacity_bytes)
        if self.record_bytes > self._tenant_bytes:
            raise KVStoreError(
                f"kv_tiers.disk_gib has no room for one block of {self.record_bytes} bytes (times kv_tiers.tenant_share"
                "): raise it"
            )
        self._segment_records = max(1, min(_SEGMENT_BYTES, self._tenant_bytes // _SEGMENTS) // self.record_bytes)
        self._digest = digest
        self._keys = keys
        self._lock = threading.Lock()
        """Guards the books below. Files are read and written without it."""
        self._places: dict[bytes, tuple[_Tenant, Segment, int]] = {}
        self._held: BlockInventory | None = None
        self._tenants: dict[bytes, _Tenant] = {}
        self._used: dict[Segment, _Tenant] = {}  # all segments, the least recently used first
        model = directory / urllib.parse.quote(name, safe="")
        try:
            self._directory = model / digest.hex()
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = (model / "lock").open("w")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._recover(model)
        except BlockingIOError:
            raise KVStoreError(f"another engine keeps KV blocks in {model}: give each a kv_tiers.directory") from None
        except OSError as error:
            raise KVStoreError(f"cannot keep KV blocks in {model} (kv_tiers.directory): {error.strerror}") from None

    def __contains__(self, name: bytes) -> bool:
        return name in self._places

    def __len__(self) -> int:
        return len(self._places)

    @property
    def num_bytes(self) -> int:
        with self._lock:
            return sum(segment.num_bytes for segment in self._used)

    def read(self, name: bytes, tenant: str, scope: bytes, into: memoryview) -> None:
        with self._lock:
            if name not in self._places:
                raise BadBlockError(EVICTED)
            owner, segment, place = self._places[name]
            self._use(segment)
        block = BlockId(name, self._digest, tenant_digest(tenant), scope)
        try:
            if self._keys is None:
                segment.read(place, block, into)
                return
            stored = memoryview(bytearray(self.record_bytes - HEADER_BYTES))
            header = segment.read(place, block, stored)
            if not header.flags & ENCRYPTED or owner.key is None:
                raise BadBlockError("decryption")
            into[:] = owner.key.decrypt(stored, b"".join(block))
        except (BadBlockError, OSError):
            self._drop(name, segment, place)
            raise

    def write(self, tenant: str, blocks: Sequence[StoredBlock]) -> None:
        digest = tenant_digest(tenant)
        owner = self._tenants.get(digest) or self._add_tenant(digest)
        rest = [block for block in blocks if block.name not in self._places]
        while rest:
            segment = self._open_segment(owner)
            room = self._segment_records - len(segment.names)
            batch, rest = rest[:room], rest[room:]
            self._make_room(owner, len(batch) * self.record_bytes, segment)
            segment.append([self._record(owner, block) for block in batch])
            with self._lock:
                if self._tenants.get(digest) is not owner:  # forgotten meanwhile
                    segment.delete()
                    return
                for block in batch:
                    self._enter(owner, segment, block.name)

    def forget(self, tenant: str) -> None:
        with self._lock:
            owner = self._tenants.pop(tenant_digest(tenant), None)
            if owner is not None:
                for segment in owner.segments:
                    self._leave(segment)

    def delete(self, tenant: str) -> None:
        """Forget a tenant and remove its files, its key first; see `Tier`."""
        self.forget(tenant)
        directory = self._directory / tenant_digest(tenant).hex()
        if directory.exists():
            (directory / KEY_FILE).unlink(missing_ok=True)
            shutil.rmtree(directory)
            sync_directory(self._directory)

    def report_to(self, held: BlockInventory | None) -> None:
        with self._lock:
            self._held = held
            if held is not None:
                for name in self._places:
                    held.add(name)

    def close(self) -> None:
        self._file.close()

    # Finding what an earlier process wrote ----------------------------------------------------------------------------

    def _recover(self, model: Path) -> None:
        for other in model.iterdir():
            if _DIGEST.fullmatch(other.name) and other != self._directory:
                _remove(other)  # of other weights or another layout
        found: list[tuple[float, _Tenant, Segment]] = []
        for directory in filter(lambda path: _DIGEST.fullmatch(path.name), self._directory.iterdir()):
            tenant = _Tenant(directory, bytes.fromhex(directory.name))
            if not directory.is_dir():
                self.unusable += 1
                _remove(directory)
            elif self._opens(tenant):
                self._tenants[tenant.digest] = tenant
                found += [(segment.path.stat().st_mtime, tenant, segment) for segment in self._scan(tenant)]
            else:
                self.unusable += sum(path.stat().st_size // self.record_bytes for path in directory.glob(f"*{SUFFIX}"))
                shutil.rmtree(directory)
        for _, tenant, segment in sorted(found, key=lambda entry: (entry[0], entry[2].path)):
            tenant.segments[segment] = None
            self._used[segment] = tenant
            for place, name in enumerate(segment.names):
                if name is not None:
                    self._note(tenant, segment, place, name)
        for tenant in self._tenants.values():
            self._make_room(tenant, 0, None)

    def _opens(self, tenant: _Tenant) -> bool:
        try:
            tenant.key = None if self._keys is None else self._keys.open(tenant.directory, tenant.digest)
        except (BadBlockError, FileNotFoundError, IsADirectoryError) as error:
            log.warning("stored KV blocks cannot be decrypted and are deleted", extra={"reason": str(error)})
            return False
        return True

    def _scan(self, tenant: _Tenant) -> Iterator[Segment]:
        for path in sorted(tenant.directory.glob(f"{'[0-9]' * 8}{SUFFIX}")):
            tenant.next_number = int(path.stem) + 1
            segment = Segment(path, self.record_bytes)
            try:
                self.unusable += segment.scan(self._digest, tenant.digest)
            except OSError as error:  # a directory in its place, or a disk that does not read it
                self.unusable += 1
                log.warning("a file of KV blocks is left out", extra={"path": str(path), "reason": error.strerror})
                continue
            if any(segment.names):
                yield segment
            else:
                segment.delete()

    # The books --------------------------------------------------------------------------------------------------------

    def _add_tenant(self, digest: bytes) -> _Tenant:
        tenant = _Tenant(self._directory / digest.hex(), digest)
        tenant.directory.mkdir(exist_ok=True, mode=0o700)
        if self._keys is not None:
            tenant.key = self._keys.make(tenant.directory, digest)
        sync_directory(self._directory)
        with self._lock:
            self._tenants[digest] = tenant
        return tenant

    def _open_segment(self, tenant: _Tenant) -> Segment:
        with self._lock:
            latest = max(tenant.segments, key=lambda segment: segment.path, default=None)
            if latest is not None and len(latest.names) < self._segment_records:
                return latest
            path = tenant.directory / f"{tenant.next_number:08d}{SUFFIX}"
            tenant.next_number += 1
            return Segment(path, self.record_bytes)

    def _record(self, tenant: _Tenant, block: StoredBlock) -> tuple[bytes, bytes | memoryview]:
        identity = BlockId(block.name, self._digest, tenant.digest, block.scope)
        if tenant.key is None:
            return pack_header(identity, block.contents), block.contents
        stored = tenant.key.encrypt(block.contents, b"".join(identity))
        return pack_header(identity, stored, ENCRYPTED), stored

    def _enter(self, tenant: _Tenant, segment: Segment, name: bytes) -> None:
        segment.names.append(name)
        tenant.segments[segment] = None
        self._used[segment] = tenant
        self._use(segment)
        self._note(tenant, segment, len(segment.names) - 1, name)

    def _note(self, tenant: _Tenant, segment: Segment, place: int, name: bytes) -> None:
        if name in self._places:
            self._places[name][1].live -= 1
        elif self._held is not None:
            self._held.add(name)
        self._places[name] = (tenant, segment, place)
        segment.live += 1

    def _use(self, segment: Segment) -> None:
        owner = self._used[segment] = self._used.pop(segment)
        del owner.segments[segment]
        owner.segments[segment] = None

    def _drop(self, name: bytes, segment: Segment, place: int) -> None:
        with self._lock:
            if self._places.get(name, (None, None, None))[1:] == (segment, place):
                self._forget_place(name)
                segment.live -= 1

    def _make_room(self, tenant: _Tenant, num_bytes: int, keep: Segment | None) -> None:
        """Delete files until so many bytes more fit; all of one that holds nothing of use, before all."""
        with self._lock:
            victims = list(self._victims(tenant, num_bytes, keep))
            for victim in victims:
                self.evictions += victim.live
                self._used[victim].segments.pop(victim)
                self._leave(victim)
        for victim in victims:
            victim.delete()

    def _victims(self, tenant: _Tenant, num_bytes: int, keep: Segment | None) -> Iterator[Segment]:
        own = tenant.num_bytes + num_bytes - self._tenant_bytes
        total = sum(segment.num_bytes for segment in self._used) + num_bytes - self.capacity_bytes
        dead_first = sorted(self._used, key=lambda segment: segment.live > 0)
        for segment in dead_first:
            is_own = self._used[segment] is tenant
            if segment is not keep and ((own > 0 and is_own) or total > 0):
                yield segment
                total -= segment.num_bytes
                own -= segment.num_bytes if is_own else 0

    def _leave(self, segment: Segment) -> None:
        del self._used[segment]
        for place, name in enumerate(segment.names):
            if name is not None and self._places.get(name, (None, None, None))[1:] == (segment, place):
                self._forget_place(name)

    def _forget_place(self, name: bytes) -> None:
        del self._places[name]
        if self._held is not None:
            self._held.drop(name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
