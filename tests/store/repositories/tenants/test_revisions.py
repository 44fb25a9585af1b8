"""What a gateway is told when it asks whose keys have changed."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy import delete, select, text, update

from kvarn.store.engine import Store
from kvarn.store.errors import StoreBehindError, StoreError
from kvarn.store.health import StoreState
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.migrate import upgrade
from kvarn.store.models import ChangeNumber, Revision
from kvarn.store.repositories.retention.organization_deletion import delete_organization
from kvarn.store.repositories.tenants import revisions
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.organizations import create_organization, ensure_default_organization
from kvarn.store.repositories.tenants.rate_limits import set_limit
from kvarn.store.repositories.tenants.revisions import EVERYBODY, Changes, note_changes, read_changes

ACTOR = Actor("test")


@pytest.fixture(autouse=True)
def _counted_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revisions, "_STRIDE", 1)


async def changes_of(store: Store, since: int) -> Changes:
    async with store.reading() as session:
        return await read_changes(session, since)


async def take_back(store: Store, number: int) -> None:
    """Lose the acts after this one."""
    async with store.transaction() as session:
        await session.execute(delete(ChangeNumber).where(ChangeNumber.number > number))
        await session.execute(delete(Revision).where(Revision.number > number, Revision.holder != "newest"))
        await session.execute(update(Revision).where(Revision.holder == "newest").values(number=number))


async def touch(store: Store, *organizations: str) -> None:
    async with audited_change(store, ACTOR) as change:
        change.touched.update(organizations)


async def test_whoever_asks_is_told_whose_keys_have_changed_since_and_of_nobody_else(store: Store) -> None:
    a, b = [(await create_organization(store, name)).organization_id for name in "ab"]
    assert await changes_of(store, 0) == Changes(0, {}, 0, is_anew=False)
    async with audited_change(store, ACTOR) as change:
        await set_limit(change, a, a, "*", {"concurrency": 1})
    await touch(store, b)
    await touch(store, b, EVERYBODY)
    assert await changes_of(store, 1) == Changes(3, {a: 1, b: 3, EVERYBODY: 3}, 1, is_anew=False)
    assert (await changes_of(store, 2)).holders == {b: 3, EVERYBODY: 3}
    assert (await changes_of(store, 3)).number == 3


async def test_an_act_that_fails_takes_no_number(store: Store) -> None:
    with pytest.raises(ValueError, match="thought better"):
        async with audited_change(store, ACTOR) as change:
            change.touched.add("org-a")
            raise ValueError("thought better of it")
    assert (await changes_of(store, 0)).number == 0


async def test_an_answer_is_bounded_and_says_from_where_on_it_is_complete(store: Store, monkeypatch) -> None:
    monkeypatch.setattr(revisions, "_CHANGES_MOST", 4)
    for number in range(1, 11):
        await touch(store, f"org-{number}")
    answer = await changes_of(store, 2)
    assert answer.number == 10 and len(answer.holders) <= 4
    assert {f"org-{number}" for number in range(answer.complete_from + 1, 11)} <= set(answer.holders)
    assert answer.complete_from > 2
    assert (await changes_of(store, 9)).complete_from == 9


async def test_a_database_that_was_taken_back_is_told_from_one_where_nothing_happened(store: Store) -> None:
    await touch(store, "org-a")
    assert not (await changes_of(store, 1)).is_anew
    answer = await changes_of(store, 7)
    assert answer.is_anew and answer.number == 1


async def test_a_database_that_lost_an_act_tells_so_however_many_came_after_it(store: Store, monkeypatch) -> None:
    monkeypatch.setattr(revisions, "_STRIDE", 2**31)
    await touch(store, "org-a")
    known = (await changes_of(store, 0)).number
    await touch(store, "org-b")
    lost = (await changes_of(store, 0)).number
    await take_back(store, known)
    for _ in range(10):
        await touch(store, "org-c")
        assert (await changes_of(store, lost)).is_anew
        assert not (await changes_of(store, known)).is_anew
        assert not (await changes_of(store, 0)).is_anew, "nobody asks about the act of that number"


async def test_the_numbers_of_the_last_acts_are_kept(store: Store, monkeypatch) -> None:
    monkeypatch.setattr(revisions, "_NUMBERS_KEPT", 3)
    for _ in range(10):
        await touch(store, "org-a")
    async with store.reading() as session:
        assert sorted(await session.scalars(select(ChangeNumber.number))) == [8, 9, 10]
    assert [number for number in range(1, 11) if not (await changes_of(store, number)).is_anew] == [8, 9, 10]


async def test_a_standby_that_lags_is_no_database_that_was_taken_back(store: Store) -> None:
    if store.is_sqlite:
        pytest.skip("SQLite has no standby")
    await touch(store, "org-a")
    for since, is_behind in ((0, False), (1, False), (7, True)):
        async with store.reading() as session:
            await session.execute(text("SET TRANSACTION READ ONLY"))
            if is_behind:
                with pytest.raises(StoreBehindError, match="a standby lags"):
                    await read_changes(session, since)
            else:
                assert (await read_changes(session, since)).number == 1
    assert store.health.state is StoreState.UP


async def test_a_standby_that_lacks_an_act_gives_its_number_to_no_other(store: Store, monkeypatch) -> None:
    monkeypatch.setattr(revisions, "_STRIDE", 2**31)
    await touch(store, "org-a")
    lost = (await changes_of(store, 0)).number
    async with store.transaction() as session:
        await session.execute(update(Revision).values(number=0))
    await touch(store, "org-b")
    assert (await changes_of(store, 0)).number != lost


async def test_a_database_without_its_number_says_what_to_do(store: Store) -> None:
    async with store.transaction() as session:
        await session.execute(delete(Revision))
    with pytest.raises(StoreError, match="kvarn store upgrade"):
        await changes_of(store, 0)
    with pytest.raises(StoreError, match="kvarn store upgrade"):
        async with store.transaction() as session:
            await note_changes(session, ["org-a"])


async def test_the_upgrade_mends_it_and_has_everybody_read_everything(store: Store) -> None:
    await touch(store, "org-a")
    await touch(store, "org-b")
    for lost in (delete(Revision).where(Revision.holder == "newest"), delete(Revision)):
        before = (await changes_of(store, 0)).number
        async with store.transaction() as session:
            await session.execute(lost)
        await upgrade(store)
        answer = await changes_of(store, before)
        assert answer.number > before and EVERYBODY in answer.holders
        await upgrade(store)
        assert (await changes_of(store, before)).number == answer.number, "once"


async def test_the_end_of_an_organisation_is_told_after_its_last_row_is_gone(store: Store) -> None:
    await ensure_default_organization(store)
    gone = (await create_organization(store, "a")).organization_id
    before = (await changes_of(store, 0)).number
    await delete_organization(store, partial(audited_change, store, ACTOR), gone, erase_usage=True)
    answer = await changes_of(store, before)
    assert gone in answer.holders and DEFAULT_ORGANIZATION not in answer.holders


async def test_the_question_is_answered_from_the_index_of_numbers(store: Store) -> None:
    if not store.is_sqlite:
        pytest.skip("PostgreSQL reads so small a table whole")
    query = "SELECT holder, number FROM revisions WHERE number >= 5 ORDER BY number DESC LIMIT 9"
    async with store.reading() as session:
        (step,) = (await session.execute(text(f"EXPLAIN QUERY PLAN {query}"))).all()
    assert "USING INDEX ix_revisions_number (number>?)" in step[3]
