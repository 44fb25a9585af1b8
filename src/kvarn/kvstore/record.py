"""The form of a block outside of the engine's memory, in a file or on its way to another process.

A header of `HEADER_BYTES`, then the contents. The header says whose contents these are (name, model, tenant, scope),
how long, and what their checksum is; a checksum of its own is its end. Nothing of a record is used unless both agree
and the header is that of the block asked for. Numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import NamedTuple

import xxhash

MAGIC = b"KVARNBLK"
VERSION = 1
"""Version of this form. Records of another are not read."""
ENCRYPTED = 1
"""Flag: the contents are encrypted."""

EVICTED = "evicted"
"""Reason of a `BadBlockError`: the block was deleted in good order since it was asked for."""

_FIELDS = struct.Struct("<8sHHI16s16s16s16sQ")
_END = struct.Struct("<I4x")
HEADER_BYTES = _FIELDS.size + _END.size


class KVStoreError(Exception):
    """The tiers cannot be set up as configured; the message says what to change."""


class BadBlockError(Exception):
    """A record is not the block that was asked for, or not as it was written. It is dropped, never used."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a stored KV block is unusable: {reason}")
        self.reason = reason


class BlockId(NamedTuple):
    name: bytes
    """16 bytes: the chained hash over model, tenant, salt, adapter and all tokens up to the block's end."""
    model: bytes
    """16 bytes: digest of the weights and of all else that the bits of a block follow from."""
    tenant: bytes
    scope: bytes
    """16 bytes: hash over model, tenant, salt and adapter."""


def tenant_digest(tenant: str) -> bytes:
    """16 bytes that stand for a tenant in headers and, as hexadecimal digits, in the names of directories."""
    return hashlib.blake2b(tenant.encode(), digest_size=16).digest()


def pack_header(block: BlockId, stored: bytes | memoryview, flags: int = 0) -> bytes:
    """The header of a record whose contents are stored as these bytes."""
    checksum = xxhash.xxh3_64_intdigest(stored)
    fields = _FIELDS.pack(
        MAGIC, VERSION, flags, len(stored), block.name, block.model, block.tenant, block.scope, checksum
    )
    return fields + _END.pack(zlib.crc32(fields))


class Header(NamedTuple):
    flags: int
    length: int  # bytes of the stored contents
    block: BlockId
    checksum: int

    def check(self, stored: bytes | memoryview) -> None:
        """Raises `BadBlockError` where these are not the contents the header belongs to."""
        if len(stored) != self.length:
            raise BadBlockError("truncated")
        if xxhash.xxh3_64_intdigest(stored) != self.checksum:
            raise BadBlockError("checksum")


def parse_header(raw: bytes | memoryview) -> Header:
    """Read a header. Raises `BadBlockError` where it is damaged, cut off, or of another version."""
    if len(raw) < HEADER_BYTES:
        raise BadBlockError("truncated")
    fields = bytes(raw[: _FIELDS.size])
    (checksum,) = _END.unpack_from(raw, _FIELDS.size)
    if checksum != zlib.crc32(fields):
        raise BadBlockError("header")
    magic, version, flags, length, name, model, tenant, scope, contents = _FIELDS.unpack(fields)
    if magic != MAGIC or version != VERSION:
        raise BadBlockError("version")
    return Header(flags, length, BlockId(name, model, tenant, scope), contents)
