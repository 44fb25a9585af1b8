"""The open lines of a batch are found without looking at those that are answered, or at another model's."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from kvarn.store.engine import Store
from kvarn.store.models import BatchLine
from kvarn.store.repositories.batches.batches import create_batch
from kvarn.store.repositories.batches.lines import FIRST, Line, OpenLine, add_lines, open_lines
from new_tenants import create_organization
from query_plans import query_plans

COUNT = 16


async def make_lines(store: Store, *models: str) -> str:
    """A batch with a line for each of these; its id."""
    who = await create_organization(store, "red")
    nothing: dict[str, Any] = {"metadata": None, "output_expires_after_s": None}
    batch = await create_batch(store, who, endpoint="/x", input_file_id="file-x", window_s=100, **nothing)
    await add_lines(store, batch.id, [Line(n, f"c{n}", b"{}", model) for n, model in enumerate(models, 1)])
    return batch.id


async def read_all(store: Store, batch_id: str, **which: Any) -> list[OpenLine]:
    """In steps, as they are run."""
    found: list[OpenLine] = []
    after = FIRST
    while True:
        some = await open_lines(store, batch_id, after, COUNT, **which)
        found += some
        if len(some) < COUNT:
            return found
        after = some[-1]


@pytest.mark.parametrize(
    "models",
    [
        ["a", "B", "b", "", "Z", "nobody-1", "c", "nobody-2"] * 20,
        [*[f"n{n % 7}" for n in range(48)], "a", "c"],
        ["a"] * 40 + ["b"] * 40,
        ["", "é", "z", "a b", "a-b", "a"] * 9,
        [],
    ],
)
async def test_each_line_stands_in_one_lane(store: Store, models: list[str]) -> None:
    batch_id = await make_lines(store, *models) if models else "batch_none"
    served = {"a", "b", "c"}
    lanes = [await read_all(store, batch_id, model=name) for name in sorted(served)]
    rest = await read_all(store, batch_id, besides=served)
    expected = [OpenLine(model, number) for number, model in enumerate(models, 1)]
    assert [line for lane in lanes for line in lane] == sorted(line for line in expected if line.model in served)
    assert sorted(rest) == sorted(line for line in expected if line.model not in served)


async def test_they_are_found_by_the_index_of_open_lines_alone(store: Store) -> None:
    batch_id = await make_lines(store, *["a"] * 3000, *["b"] * 3000, *["nobody"] * 5)
    async with store.transaction() as session:
        answered = BatchLine.line.between(21, 2990)
        await session.execute(update(BatchLine).where(answered).values(failed=False))
    async with query_plans(store, "batch_lines") as plans:
        assert len(await open_lines(store, batch_id, FIRST, COUNT, model="a")) == COUNT
        assert len(await open_lines(store, batch_id, FIRST, COUNT, besides={"a", "b"})) == 5
    assert len(plans) == 4, "one for the first lane; over a, over b, and the rest"
    assert all("ix_batch_lines_open" in plan and "NOT" not in plan.upper().replace("NOTHING", "") for plan in plans)
