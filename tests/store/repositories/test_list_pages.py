"""Pages of a list neither lose nor repeat an object, and a cursor finds nothing outside its list."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.models import Organization, Project
from kvarn.store.repositories.pages import Cursor, Page, cut_page, read_page

KEYS = (Project.created_at, Project.id)


async def fill(store: Store) -> None:
    """Two organisations; many projects of one second, so that the second part of the key decides."""
    async with store.transaction() as session:
        for organization in ("org-a", "org-b"):
            session.add(Organization(id=organization, name="", created_at=1, cache_salt=""))
        await session.flush()
        for number in range(7):
            created = number // 3
            for organization in ("org-a", "org-b"):
                project_id = f"proj_{organization[-1]}{number}"
                session.add(Project(id=project_id, organization_id=organization, name="", created_at=created))


async def read(store: Store, cursor: Cursor) -> Page[str]:
    query = select(Project).where(Project.organization_id == "org-a")
    async with store.reading() as session:
        page = await read_page(session, query, cursor, KEYS)
    return Page([project.id for project in page.items], page.has_more)


@pytest.mark.parametrize("ascending", [True, False])
async def test_pages_follow_each_other_without_loss_or_repeat(store: Store, ascending: bool) -> None:
    await fill(store)
    seen: list[str] = []
    page = await read(store, Cursor(limit=2, ascending=ascending))
    while True:
        seen += page.items
        if not page.has_more:
            break
        page = await read(store, Cursor(limit=2, after=seen[-1], ascending=ascending))
    expected = [f"proj_a{number}" for number in range(7)]
    assert seen == (expected if ascending else expected[::-1])


async def test_before_gives_the_nearest_objects_in_the_order_of_the_list(store: Store) -> None:
    await fill(store)
    assert await read(store, Cursor(limit=2, before="proj_a4", ascending=True)) == Page(["proj_a2", "proj_a3"], True)
    assert await read(store, Cursor(limit=9, before="proj_a1", ascending=True)) == Page(["proj_a0"], False)


async def test_a_cursor_of_somebody_else_is_as_unknown_as_none(store: Store) -> None:
    await fill(store)
    for anchor in ("proj_b3", "proj_none"):
        with pytest.raises(NotFoundError, match="holds no object"):
            await read(store, Cursor(after=anchor))


@pytest.mark.parametrize(
    ("cursor", "expected"),
    [
        (Cursor(limit=2, ascending=True), Page(["a", "b"], True)),
        (Cursor(limit=2, after="b", ascending=True), Page(["c", "d"], False)),
        (Cursor(limit=2, after="c"), Page(["b", "a"], False)),
        (Cursor(limit=2, before="d", ascending=True), Page(["b", "c"], True)),
        (Cursor(limit=2, before="b", ascending=True), Page(["a"], False)),
    ],
)
def test_lists_in_memory_are_cut_alike(cursor: Cursor, expected: Page[str]) -> None:
    assert cut_page("abcd", cursor, str) == expected


def test_a_list_in_memory_has_no_place_behind_a_stranger() -> None:
    with pytest.raises(NotFoundError):
        cut_page("abcd", Cursor(after="x"), str)
