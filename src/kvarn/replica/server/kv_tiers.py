"""The tiers of a model's KV blocks as configured, and the digest that keeps blocks of other weights apart."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from kvarn import __version__
from kvarn.config.kv_tiers import KVTiersConfig
from kvarn.kernels.device.memory import GIB
from kvarn.kvstore import DiskTier, KVStoreError, MemoryTier, TieredStore
from kvarn.kvstore.keys import MasterKeys
from kvarn.kvstore.tier import Tier
from kvarn.models import Decoder
from kvarn.models.loading.packed_cache import code_digest, origin_of
from kvarn.shapes import BLOCK_SIZE

_KERNELS = Path(__file__).parents[2] / "kernels"
_CHUNK_BYTES = 1 << 22

log = logging.getLogger(__name__)


class BuiltTiers(NamedTuple):
    store: TieredStore
    namespace: str
    """Namespace of their blocks' names: the model's and, where blocks leave the process, its digest."""
    digest: bytes
    """See `BlockId.model`; empty where blocks do not leave the process."""
    block_bytes: int
    num_slots: int  # blocks in memory at most


def build_tiers(
    model: Decoder,
    config: KVTiersConfig,
    name: str,
    checkpoint: Path,
    *,
    shared: bool,
    sums: tuple[object, ...],
    size: int,
    memory_of: Callable[[int], memoryview] | None,
) -> BuiltTiers:
    """The tiers as configured.

    Args:
        shared: Blocks go to another process.
        sums: What the bits and the layout of a block follow from, beside the model: how it is divided among ranks.
        size: Bytes of a block, all ranks' parts of it.
        memory_of: Makes memory of so many bytes that all ranks map; None: there is one rank.

    Raises:
        KVStoreError: They cannot be had as configured; the message says what to change.
    """
    slots = int(config.host_gib * GIB) // size
    tenant_slots = int(slots * config.tenant_share)
    if not tenant_slots:
        raise KVStoreError(
            f"kv_tiers.host_gib has no room for one block of {size} bytes (times kv_tiers.tenant_share): raise it"
        )
    memory = MemoryTier(slots, size, tenant_slots, None if memory_of is None else memory_of(slots * size))
    directory = None if config.directory is None else Path(config.directory).expanduser()
    if not shared and (directory is None or not config.disk_gib):
        return BuiltTiers(TieredStore(memory), name, b"", size, slots)
    digest = hashlib.blake2b(digest_size=16)
    for part in (
        *(__version__, torch.__version__, code_digest(), _native_digest(), model.kernels.name, BLOCK_SIZE, size),
        *(model.dtype, model.kv_dtype, model.quantization, model.spec, weights_digest(checkpoint, directory), *sums),
    ):
        digest.update(f"{part}\0".encode())
    tiers: list[Tier] = []
    if directory is not None and config.disk_gib:
        tiers.append(_open_disk(config, directory, name, digest.digest(), size))
    return BuiltTiers(TieredStore(memory, tiers), f"{name}/{digest.hexdigest()}", digest.digest(), size, slots)


def _open_disk(config: KVTiersConfig, directory: Path, name: str, digest: bytes, size: int) -> DiskTier:
    keys = None if config.encryption_key_file is None else Path(config.encryption_key_file).expanduser()
    capacity = int(config.disk_gib * GIB)
    disk = DiskTier(
        directory,
        name,
        digest,
        block_bytes=size,
        capacity_bytes=capacity,
        tenant_bytes=int(capacity * config.tenant_share),
        keys=None if keys is None else MasterKeys.load(keys),
    )
    log.info("KV blocks found on disk", extra={"blocks": len(disk), "unusable": disk.unusable})
    return disk


def weights_digest(checkpoint: Path, directory: Path | None) -> str:
    """SHA-256 of a checkpoint's weights and configuration, in hexadecimal digits. Raises `KVStoreError` where the
    directory cannot be written, or a file cannot be read.

    They are read whole, since any weight may change a block. The result is kept in `directory`, if there is one, for as
    long as the files' paths, sizes and times of change stay the same.
    """
    try:
        files = sorted([*checkpoint.glob("*.safetensors"), checkpoint / "config.json"])
        if directory is None:
            return _digest(files)
        origin = hashlib.sha256(json.dumps(origin_of(files)).encode()).hexdigest()
        kept = directory / "weights" / origin
        if kept.is_file() and len(known := kept.read_text(encoding="ascii")) == 64:
            return known
        found = _digest(files)
        kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = kept.with_name(f".{origin}.{os.getpid()}")
        draft.write_text(found, encoding="ascii")
        draft.replace(kept)
        return found
    except OSError as error:
        raise KVStoreError(f"cannot keep KV blocks of {checkpoint} (kv_tiers.directory): {error}") from None


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        _add(digest, file)
    return digest.hexdigest()


def _native_digest() -> str:
    digest = hashlib.sha256()
    for file in sorted(_KERNELS.glob("*/_native*.so")):
        _add(digest, file)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, file: Path) -> None:
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            digest.update(chunk)
