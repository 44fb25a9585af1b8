"""Blocks on disk: segment files by tenant, found again after a restart by reading their headers.

    directory/model/digest/tenant/00000001.segment      and `key`, where blocks are encrypted

The digest is that of the model's weights and layout: when it changes, what was kept before is deleted, since no engine
can use it. A block can be found from when its batch is on disk (`fsync`); whatever ends the process before loses the
batch, nothing else. Which files go for others, `SegmentTier` says.
"""

from __future__ import annotations

import fcntl
import logging
import re
import shutil
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvarn.kvstore.keys import KEY_FILE, OVERHEAD_BYTES, MasterKeys
from kvarn.kvstore.record import (
    ENCRYPTED,
    HEADER_BYTES,
    BadBlockError,
    BlockId,
    KVStoreError,
    pack_header,
    tenant_digest,
)
from kvarn.kvstore.segment_file import SUFFIX, SegmentFile, sync_directory
from kvarn.kvstore.segment_tier import Segment, SegmentOwner, SegmentTier
from kvarn.kvstore.tier import StoredBlock

_DIGEST = re.compile("[0-9a-f]{32}")

log = logging.getLogger(__name__)


class DiskTier(SegmentTier):
    """Blocks by name, in files.

    Args:
        directory: Directory for all models; the engine's own part of it is locked while it runs.
        digest: 16 bytes; see `BlockId.model`.
        block_bytes: Bytes of a block's contents.
        capacity_bytes: Bytes of all files at most; `tenant_bytes`: of one tenant's.
        keys: Encrypts; None leaves blocks as they are.

    Raises:
        KVStoreError: The directory cannot be used, or another engine uses it.
    """

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
        super().__init__(stored_bytes(block_bytes, encrypted=keys is not None), capacity_bytes, tenant_bytes)
        self._digest = digest
        self._keys = keys
        model = directory / urllib.parse.quote(name, safe="")
        try:
            self._directory = model / digest.hex()
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock_file = (model / "lock").open("w")
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._recover(model)
        except BlockingIOError:
            raise KVStoreError(f"another engine keeps KV blocks in {model}: give each a kv_tiers.directory") from None
        except OSError as error:
            raise KVStoreError(f"cannot keep KV blocks in {model} (kv_tiers.directory): {error.strerror}") from None

    def delete(self, tenant: str) -> None:
        """Forget a tenant and remove its files, its key first; see `Tier`."""
        self.forget(tenant)
        directory = self._directory / tenant_digest(tenant).hex()
        if directory.exists():
            (directory / KEY_FILE).unlink(missing_ok=True)
            shutil.rmtree(directory)
            sync_directory(self._directory)

    def close(self) -> None:
        self._lock_file.close()

    # Contents ---------------------------------------------------------------------------------------------------------

    def _prepare(self, owner: SegmentOwner) -> None:
        directory = self._directory_of(owner)
        directory.mkdir(exist_ok=True, mode=0o700)
        if self._keys is not None:
            owner.key = self._keys.make(directory, owner.digest)
        sync_directory(self._directory)

    def _append(self, segment: Segment, blocks: Sequence[StoredBlock]) -> None:
        records = [self._record(segment.owner, block) for block in blocks]
        self._file(segment).append(records, segment.num_bytes)

    def _read(self, segment: Segment, place: int, block: tuple[bytes, str, bytes], into: memoryview) -> None:
        name, tenant, scope = block
        identity, file = BlockId(name, self._digest, tenant_digest(tenant), scope), self._file(segment)
        if self._keys is None:
            file.read(place, identity, into)
            return
        stored, key = memoryview(bytearray(self.record_bytes - HEADER_BYTES)), segment.owner.key
        header = file.read(place, identity, stored)
        if not header.flags & ENCRYPTED or key is None:
            raise BadBlockError("decryption")
        into[:] = key.decrypt(stored, b"".join(identity))

    def _remove(self, segment: Segment) -> None:
        self._file(segment).delete()

    def _file(self, segment: Segment) -> SegmentFile:
        return SegmentFile(self._directory_of(segment.owner) / f"{segment.number:08d}{SUFFIX}", self.record_bytes)

    def _directory_of(self, owner: SegmentOwner) -> Path:
        return self._directory / owner.digest.hex()

    def _record(self, owner: SegmentOwner, block: StoredBlock) -> tuple[bytes, bytes | memoryview]:
        identity = BlockId(block.name, self._digest, owner.digest, block.scope)
        if owner.key is None:
            return pack_header(identity, block.contents), block.contents
        stored = owner.key.encrypt(block.contents, b"".join(identity))
        return pack_header(identity, stored, ENCRYPTED), stored

    # Finding what an earlier process wrote ----------------------------------------------------------------------------

    def _recover(self, model: Path) -> None:
        for other in model.iterdir():
            if _DIGEST.fullmatch(other.name) and other != self._directory:
                _remove_path(other)  # of other weights or another layout
        found: list[tuple[float, Path, Segment]] = []
        for directory in filter(lambda path: _DIGEST.fullmatch(path.name), self._directory.iterdir()):
            owner = SegmentOwner(bytes.fromhex(directory.name))
            if not directory.is_dir():
                self.unusable += 1
                _remove_path(directory)
            elif self._opens(owner):
                self._owners[owner.digest] = owner
                found += [(path.stat().st_mtime, path, segment) for path, segment in self._scan(owner)]
            else:
                self.unusable += sum(path.stat().st_size // self.record_bytes for path in directory.glob(f"*{SUFFIX}"))
                shutil.rmtree(directory)
        for _, _, segment in sorted(found, key=lambda entry: entry[:2]):
            segment.owner.segments[segment] = None
            self._used[segment] = None
            for place, name in enumerate(segment.names):
                if name is not None:
                    self._note(segment, place, name)
        for owner in self._owners.values():
            self._make_room(owner, 0, None)

    def _opens(self, owner: SegmentOwner) -> bool:
        if self._keys is None:
            return True
        try:
            owner.key = self._keys.open(self._directory_of(owner), owner.digest)
        except (BadBlockError, FileNotFoundError, IsADirectoryError) as error:
            log.warning("stored KV blocks cannot be decrypted and are deleted", extra={"reason": str(error)})
            return False
        return True

    def _scan(self, owner: SegmentOwner) -> Iterator[tuple[Path, Segment]]:
        for path in sorted(self._directory_of(owner).glob(f"{'[0-9]' * 8}{SUFFIX}")):
            number = int(path.stem)
            owner.next_number = number + 1
            segment, file = Segment(owner, number, self.record_bytes), SegmentFile(path, self.record_bytes)
            try:
                segment.names, unusable = file.scan(self._digest, owner.digest)
            except OSError as error:  # a directory in its place, or a disk that does not read it
                self.unusable += 1
                log.warning("a file of KV blocks is left out", extra={"path": str(path), "reason": error.strerror})
                continue
            self.unusable += unusable
            if any(segment.names):
                yield path, segment
            else:
                file.delete()


def stored_bytes(block_bytes: int, *, encrypted: bool) -> int:
    """Bytes that a block of so many takes on disk."""
    return HEADER_BYTES + block_bytes + (OVERHEAD_BYTES if encrypted else 0)


def _remove_path(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
