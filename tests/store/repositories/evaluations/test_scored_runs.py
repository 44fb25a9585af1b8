"""Runs that scores are made of."""

from __future__ import annotations

import pytest

from kvarn.store.engine import Store
from kvarn.store.repositories.evaluations import runs, sets
from new_tenants import create_organization


async def test_a_pinned_run_is_read_however_many_followed_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_SUMMED_RUNS", 2)
    principal = await create_organization(store, "red")
    of = await sets.create_set(store, principal, "smoke", "", [], "")
    made = []
    for now in range(1000, 1005):
        store.now = lambda now=now: now
        made.append((await runs.create_run(store, principal, of, 1, 0, "m", {})).id)
        await runs.claim_runs(store, "gw", 60, 1)
        assert await runs.finish_run(store, "gw", made[-1])
    await sets.update_set(store, principal.owner, of.id, {"baseline_run_id": made[1]})
    assert [run.id for run, _ in await runs.completed_runs(store)] == [made[4], made[3], made[1]]
