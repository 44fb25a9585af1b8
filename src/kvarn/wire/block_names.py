"""Names of KV blocks, equal in every process of the platform: a chained hash over what a block's contents depend on.

A name is 16 bytes of BLAKE2b over the name of the block before it and the block's own tokens; the first block's is
chained to a hash of the model, tenant, salt and adapter.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
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


def segment_names(root: bytes, segments: Iterable[tuple[int, int]]) -> list[bytes]:
    """Names of the full blocks of a prompt that is known as segments: the key of each, of at most 95 bits, and how many
    tokens it has. Equal keys stand for equal tokens, a shorter length for the first of them. So blocks have equal names
    where their tokens, and all before them, are the same; they are other names than `block_hashes` gives.

    A block's name depends on the keys and lengths of all segments that begin before its end, but not on the length of
    the last of them.
    """
    names: list[bytes] = []
    state, position, before = root, 0, 0
    for key, length in segments:
        if not length:
            continue
        parts = before.to_bytes(4, "little") + key.to_bytes(12, "little", signed=True)
        state = hashlib.blake2b(state + parts, digest_size=16).digest()
        count = (position + length) // BLOCK_SIZE - position // BLOCK_SIZE
        if count:
            raw = hashlib.shake_128(state).digest(16 * count)
            names += [raw[start : start + 16] for start in range(0, 16 * count, 16)]
        position, before = position + length, length
    return names


class NamedPrompt(list[int]):
    """A prompt for a modelled engine, in place of its token ids: only the names of its blocks matter, and those of the
    answer's. All its tokens are 0."""

    __slots__ = ("names",)

    def __init__(self, num_tokens: int, names: list[bytes]) -> None:
        """`names`: of all full blocks of prompt and answer, the answer's last token left out."""
        super().__init__([0] * num_tokens)
        self.names = names

    @classmethod
    def of(cls, root: bytes, segments: Sequence[tuple[int, int]], answer: tuple[int, int]) -> NamedPrompt:
        """The prompt made of these segments, whose answer is that one. `root`: see `root_hash`."""
        return cls(sum([length for _, length in segments]), segment_names(root, [*segments, answer]))

    @property
    def index_names(self) -> bytes:
        """The prompt's full blocks, as the index of replicas' blocks has them (`kvarn.wire.block_events`)."""
        return b"".join([name[:8] for name in self.names[: len(self) // BLOCK_SIZE]])
