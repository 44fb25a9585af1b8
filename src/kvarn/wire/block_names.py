"""Names of KV blocks, equal in every process of the platform: a chained hash over what a block's contents depend on.

A name is 16 bytes of BLAKE2b over the name of the block before it and the block's own tokens; the first block's is
chained to a hash of the model, tenant, salt and adapter.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

from kvarn.shapes import BLOCK_SIZE

_pack_tokens = struct.Struct(f"<{BLOCK_SIZE}q").pack


class PrefixScope(NamedTuple):
    """Scope within which equal tokens share a block."""

    tenant: str = ""
    salt: str = ""
    adapter: str = ""


def root_hash(scope: PrefixScope, namespace: str = "") -> bytes:
    """The hash that the first block's is chained to: 16 bytes of BLAKE2b over model, tenant, salt and adapter.

    Each part goes in with its length, so no choice of one can imitate another.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (namespace, *scope):
        raw = part.encode()
        digest.update(struct.pack("<q", len(raw)) + raw)
    return digest.digest()


def chain_hash(parent: bytes, block_tokens: Sequence[int]) -> bytes:
    """The hash of a block: 16 bytes of BLAKE2b over the parent's hash and the block's tokens."""
    pack = _pack_tokens if len(block_tokens) == BLOCK_SIZE else struct.Struct(f"<{len(block_tokens)}q").pack
    return hashlib.blake2b(parent + pack(*block_tokens), digest_size=16).digest()


def block_hashes(tokens: list[int], scope: PrefixScope, namespace: str = "") -> list[bytes]:
    """Names of a sequence's blocks, as every process of the platform computes them; the last may not be full."""
    hashes = [root_hash(scope, namespace)]
    for start in range(0, len(tokens), BLOCK_SIZE):
        hashes.append(chain_hash(hashes[-1], tokens[start : start + BLOCK_SIZE]))
    return hashes[1:]
