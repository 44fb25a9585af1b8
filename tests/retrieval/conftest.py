from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvarn.store.engine import Store
from kvarn.store.owner import Principal
from new_tenants import create_organization
from retrieval_world import RetrievalWorld


@pytest.fixture
def world(store: Store, tmp_path: Path) -> Iterator[RetrievalWorld]:
    made = RetrievalWorld(store, tmp_path / "index")
    yield made
    made.retriever.close()


@pytest.fixture
async def alice(store: Store) -> Principal:
    return await create_organization(store, "alice")


@pytest.fixture
async def bob(store: Store) -> Principal:
    return await create_organization(store, "bob")
