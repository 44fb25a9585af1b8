"""A sweep and a deletion read what goes and nothing else, and what fails in one kind is that kind's alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event, func, make_url, select, text, update

from kvarn.config.platform import RetentionConfig
from kvarn.store.engine import Store
from kvarn.store.migrate import upgrade
from kvarn.store.models import Organization, PromptSample, StoredCompletion
from kvarn.store.owner import Principal
from kvarn.store.repositories.organization_deletion import delete_organization_data
from kvarn.store.repositories.retention import delete_expired
from new_tenants import create_organization
from retention_sweeps import sweeps

DAY = 24 * 3600
ALL_DAYS = RetentionConfig(conversations_days=1, responses_days=1, files_days=1, prompt_samples_days=1)


async def keep(store: Store, who: Principal, count: int, age_s: int) -> None:
    """So many completions and one prompt sample of this age."""
    marks: dict[str, Any] = {"organization_id": who.organization_id, "project_id": who.project_id, "model": "m"}
    marks["created_at"] = int(store.now()) - age_s
    rows = [StoredCompletion(id=f"c{age_s}-{n}", extra={}, messages=[], body={}, **marks) for n in range(count)]
    async with store.transaction() as session:
        session.add_all([*rows, PromptSample(request_id="r", sealed=b"", **marks)])


@contextmanager
def reads_of(store: Store) -> Iterator[list[tuple[str, Any]]]:
    """The queries, with their parameters, that are asked meanwhile."""
    seen: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if statement.startswith("SELECT"):
            seen.append((statement, parameters))

    event.listen(store.engine.sync_engine, "before_cursor_execute", note)
    yield seen
    event.remove(store.engine.sync_engine, "before_cursor_execute", note)


async def count(store: Store, table: type[Any]) -> int:
    async with store.reading() as session:
        return int(await session.scalar(select(func.count()).select_from(table)) or 0)


async def test_no_look_reads_a_whole_table(tmp_path: Any) -> None:
    store = Store(make_url(f"sqlite+aiosqlite:///{tmp_path}/kvarn.db"))
    await upgrade(store)
    red, blue = [await create_organization(store, name) for name in ("red", "blue")]
    async with store.transaction() as session:
        await session.execute(
            update(Organization).where(Organization.id == red.organization_id).values(retention_days=1)
        )
    await keep(store, red, 60, 2 * DAY)
    await keep(store, blue, 60, DAY // 2)
    with reads_of(store) as queries:
        assert (await delete_expired(store, ALL_DAYS)).deleted["stored_completions"] == 60
        assert (await delete_organization_data(store, blue.organization_id))["stored_completions"] == 60
    plans = []
    async with store.engine.connect() as connection:
        for statement, parameters in queries:
            lines = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans += [line.detail for line in lines]
    await store.close()
    assert {plan for plan in plans if plan.startswith("SCAN")} == {"SCAN organizations"}
    ways = [plan for plan in plans if "SEARCH stored_completions" in plan]
    # Each step goes on where the one before ended: its beginning is part of what the index is asked for.
    assert sum("(created_at>? AND created_at<?)" in way for way in ways) >= 2, ways
    assert sum("(organization_id=? AND created_at>?)" in way for way in ways) >= 2, ways


async def test_a_kind_that_fails_stops_no_other_and_is_tried_again_at_the_next_look(store: Store) -> None:
    await keep(store, await create_organization(store, "red"), 3, 90 * DAY)
    async with store.transaction() as session:
        await session.execute(text("ALTER TABLE stored_completions RENAME TO elsewhere"))
    assert await sweeps(store, RetentionConfig(sweep_interval_s=3600))
    assert await count(store, PromptSample) == 0
    async with store.transaction() as session:
        await session.execute(text("ALTER TABLE elsewhere RENAME TO stored_completions"))
    assert await sweeps(store, RetentionConfig(sweep_interval_s=3600))
    assert await count(store, StoredCompletion) == 0
    assert not await sweeps(store, RetentionConfig(sweep_interval_s=3600))
