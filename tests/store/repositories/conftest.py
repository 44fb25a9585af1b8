from __future__ import annotations

import pytest

from kvarn.store.engine import Store


class Clock:
    """Stands still until a test moves it."""

    now = 2_000_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(store: Store) -> Clock:
    """The database's clock."""
    store.now = Clock()
    return store.now
