"""Which cached blocks came and went, for whoever wants to know what an engine holds."""

from __future__ import annotations

from collections.abc import Iterable

from kvarn.wire.block_events import NAME_BYTES


def packed(names: Iterable[bytes]) -> bytes:
    """The first bytes of these names, one behind the other."""
    return b"".join([name[:NAME_BYTES] for name in names])


class BlockChanges:
    """What has changed since it was last told. A block that came and went in between is not mentioned."""

    def __init__(self) -> None:
        self._stored: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}

    def stored(self, name: bytes) -> None:
        """A block is in the cache now."""
        if name in self._removed:
            del self._removed[name]
        else:
            self._stored[name] = None

    def removed(self, name: bytes) -> None:
        """A block is not in the cache any more."""
        if name in self._stored:
            del self._stored[name]
        else:
            self._removed[name] = None

    def __bool__(self) -> bool:
        return bool(self._stored or self._removed)

    def take(self) -> tuple[bytes, bytes]:
        """Blocks that came and blocks that went, each 8 bytes a block; they are told."""
        told = packed(self._stored), packed(self._removed)
        self._stored.clear()
        self._removed.clear()
        return told
