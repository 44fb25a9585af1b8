"""Keeps what a replica says of its cached blocks in a set."""

from __future__ import annotations


class SetWatcher:
    """A `BlockWatcher`."""

    def __init__(self) -> None:
        self.names: set[bytes] | None = None
        """None: nothing is known."""

    def replace(self, names: bytes) -> None:
        self.names = names_in(names)

    def change(self, stored: bytes, removed: bytes) -> None:
        assert self.names is not None
        self.names = (self.names | names_in(stored)) - names_in(removed)

    def forget(self) -> None:
        self.names = None


def names_in(packed: bytes) -> set[bytes]:
    found = [packed[start : start + 8] for start in range(0, len(packed), 8)]
    assert len(set(found)) == len(found), "a block is told twice"
    return set(found)
