"""The interface of a tier behind memory. To add one: a class like this, and a row in `replica.server.kv_tiers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kvarn.engine.memory.block_inventory import BlockInventory


class StoredBlock(NamedTuple):
    name: bytes
    scope: bytes
    contents: memoryview


class Tier(Protocol):
    """Blocks by name, of one model. One thread writes and deletes; others read, ask and forget meanwhile."""

    @property
    def label(self) -> str: ...

    @property
    def capacity_bytes(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...

    @property
    def evictions(self) -> int: ...

    @property
    def unusable(self) -> int: ...

    def __contains__(self, name: bytes, /) -> bool: ...

    def __len__(self) -> int: ...

    def read(self, name: bytes, tenant: str, scope: bytes, into: memoryview) -> None:
        """Read and verify a block's contents. Raises `BadBlockError` or OSError where it is unusable; then it is not
        here any more."""

    def write(self, tenant: str, blocks: Sequence[StoredBlock]) -> None:
        """Keep a tenant's blocks. Raises OSError where some could not be written; those that were are kept."""

    def forget(self, tenant: str) -> None:
        """No block of the tenant can be found any more."""

    def delete(self, tenant: str) -> None:
        """Forget a tenant and remove all that is kept of it. Raises OSError where some could not be removed."""

    def report_to(self, held: BlockInventory | None) -> None: ...

    def close(self) -> None: ...
