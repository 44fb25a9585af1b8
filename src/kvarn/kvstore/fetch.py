"""Blocks on their way into the memory tier, and the copying of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvarn.engine.plan import BlockContents

if TYPE_CHECKING:
    from kvarn.kvstore.tiers import TieredStore


class Fetch:
    """Blocks that a waiting sequence begins with, on their way from a tier or a prefill engine; see `KVFetch`."""

    def __init__(self, store: TieredStore, names: Sequence[bytes], tenant: str, scope: bytes) -> None:
        self.names, self.tenant, self.scope = names, tenant, scope
        self.pinned: list[bytes] = []  # those that are in memory
        self.ended = False
        self.on_release: Callable[[], None] = lambda: None
        """Called once, when no sequence waits for it any more."""
        self._store = store

    def is_done(self) -> bool:
        return self.ended

    def release(self) -> None:
        self._store.end_fetch(self)
        on_release, self.on_release = self.on_release, lambda: None
        on_release()


def copy_parts(parts: BlockContents, contents: memoryview, *, outwards: bool) -> None:
    if sum(map(len, parts)) != len(contents):
        raise ValueError(f"a block has {len(contents)} bytes here, and {sum(map(len, parts))} in the KV cache")
    start = 0
    for part in parts:
        here = contents[start : start + len(part)]
        if outwards:
            part[:] = here
        else:
            here[:] = part
        start += len(part)
