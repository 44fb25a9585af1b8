"""Kept requests: written once, found by what they are, paged in both orders, each list by an index of its order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import func, select

from kept_rows import ROWS, START_US, fill, kept_row
from kvarn.config.platform import RetentionConfig
from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.models import KeptDetail, KeptRequest
from kvarn.store.owner import Owner
from kvarn.store.repositories.kept_bounds import bound_kept, fair_share
from kvarn.store.repositories.kept_requests import (
    KeptFilter,
    KeptOrder,
    KeptPlace,
    add_kept,
    count_kept,
    details_of_shape,
    find_kept,
    list_kept,
    owner_and_time,
    session_of,
)
from kvarn.store.repositories.organization_deletion import delete_organization_data
from kvarn.store.repositories.retention import delete_expired
from new_tenants import create_organization
from query_plans import query_plans

ANY = KeptFilter()


@pytest.fixture
async def red(store: Store) -> Owner:
    return (await create_organization(store, "red")).owner


@pytest.fixture
async def blue(store: Store) -> Owner:
    return (await create_organization(store, "blue")).owner


async def keep(store: Store, rows: Sequence[dict[str, Any]]) -> Counter[str]:
    return await add_kept(store, rows, {row["id"]: row["id"].encode() for row in rows})


async def listed(store: Store, where: KeptFilter = ANY, order: KeptOrder = KeptOrder.NEWEST) -> list[int]:
    """Numbers of all, read in pages of three."""
    found: list[int] = []
    after: KeptPlace | None = None
    async with store.reading() as session:
        while True:
            page = await list_kept(session, where, order, 3, after)
            found += [int(each.id, 16) for each in page.items]
            after = page.next
            if after is None:
                return found


async def count(store: Store, model: type[KeptRequest] | type[KeptDetail] = KeptRequest) -> int:
    async with store.reading() as session:
        return await session.scalar(select(func.count()).select_from(model)) or 0


async def test_pages_are_whole_in_both_orders(store: Store, red: Owner) -> None:
    await keep(store, [kept_row(n, red, total_us=(n * 7 % 5) * 1000) for n in range(10)])
    assert await listed(store) == list(range(9, -1, -1))
    slowest = sorted(range(10), key=lambda n: (n * 7 % 5, n), reverse=True)
    assert await listed(store, order=KeptOrder.SLOWEST) == slowest


async def test_requests_are_counted_up_to_a_bound(
    store: Store, red: Owner, blue: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(store, [kept_row(n, red, total_us=n) for n in range(6)] + [kept_row(n, blue) for n in range(6, 8)])
    where = KeptFilter(organization_id=red.organization_id, min_total_us=4)
    async with store.reading() as session:
        assert (await count_kept(session, where), await count_kept(session, owner_and_time(where))) == (2, 6)
        monkeypatch.setattr("kvarn.store.repositories.kept_requests.MAX_COUNTED", 5)
        assert await count_kept(session, ANY) == 5


async def test_a_page_goes_on_behind_a_row_that_has_been_deleted(store: Store, red: Owner) -> None:
    await keep(store, [kept_row(n, red) for n in range(9)])
    async with store.reading() as session:
        first = await list_kept(session, ANY, KeptOrder.NEWEST, 3)
    await bound_kept(store, 0, 1 << 40)
    await keep(store, [kept_row(n, red) for n in range(6)])
    async with store.reading() as session:
        rest = await list_kept(session, ANY, KeptOrder.NEWEST, 3, first.next)
    assert [int(each.id, 16) for each in rest.items] == [5, 4, 3]


async def test_one_that_is_written_again_is_there_once(store: Store, red: Owner) -> None:
    for _ in range(2):
        assert await keep(store, [kept_row(1, red), kept_row(2, red)]) == {"ordinary": 2}
    assert await listed(store) == [2, 1]
    assert await count(store, KeptDetail) == 2


FILTERS: list[tuple[KeptFilter, set[int]]] = [
    (KeptFilter(session="s"), {1}),
    (KeptFilter(key_id="key_1"), {2}),
    (KeptFilter(end_user="ada"), {3}),
    (KeptFilter(batch_id="batch_1"), {12}),
    (KeptFilter(text="s"), {1}),
    (KeptFilter(text="key_1"), {2}),
    (KeptFilter(text="large", statuses=(200, 299)), {4}),
    (KeptFilter(text="nobody"), set()),
    (KeptFilter(model="large"), {4}),
    (KeptFilter(model_version="v2"), {5}),
    (KeptFilter(endpoint="/v1/embeddings"), {6}),
    (KeptFilter(statuses=(500, 599)), {7}),
    (KeptFilter(statuses=(400, 499)), {8}),
    (KeptFilter(statuses=(429, 429)), {8}),
    (KeptFilter(statuses=(200, 299), model="large"), {4}),
    (KeptFilter(outcome="failed"), {7}),
    (KeptFilter(outcome="aborted"), {9}),
    (KeptFilter(reason="slow"), {10}),
    (KeptFilter(cause="queue: KV blocks"), {11}),
    (KeptFilter(min_total_us=9_000_000), {10}),
    (KeptFilter(min_ttft_us=5_000_000), {11}),
    (KeptFilter(since_us=START_US + 11_000), {11, 12}),
    (KeptFilter(since_us=START_US + 2000, until_us=START_US + 4000), {2, 3}),
    (KeptFilter(id=f"{12:032x}"), {12}),
    (KeptFilter(id=f"{12:032x}"[:31]), set(range(13))),
    (KeptFilter(id="own-7"), {0}),
    (KeptFilter(id="own-"), {0}),
    (KeptFilter(id="own-9"), set()),
    (KeptFilter(id="%"), set()),
]


@pytest.mark.parametrize("order", KeptOrder)
async def test_each_filter_selects_its_own(store: Store, red: Owner, blue: Owner, order: KeptOrder) -> None:
    special: list[dict[str, Any]] = [
        {"request_id": "own-77"},
        {"session": "s"},
        {"key_id": "key_1"},
        {"end_user": "ada"},
        {"model": "large"},
        {"model_version": "v2"},
        {"endpoint": "/v1/embeddings"},
        {"status": 503, "outcome": "failed", "reason": "error"},
        {"status": 429, "outcome": "refused", "reason": "refused"},
        {"status": 0, "outcome": "aborted"},
        {"reason": "slow", "total_us": 9_000_000},
        {"ttft_us": 6_000_000, "cause": "queue: KV blocks"},
        {"ttft_us": None, "batch_id": "batch_1"},
    ]
    await keep(store, [kept_row(n, red, **columns) for n, columns in enumerate(special)])
    await keep(store, [kept_row(100, blue, started_us=START_US - 1000, id="f" * 32)])
    red_only = {"organization_id": red.organization_id}, {"project_id": red.project_id}
    for where, numbers in FILTERS:
        for scope in ({}, *red_only):
            found = await listed(store, replace(where, **scope), order)
            assert set(found) == numbers and len(found) == len(numbers), (where, scope)
        assert await listed(store, replace(where, organization_id=blue.organization_id), order) == []
        assert await listed(store, replace(where, project_id=blue.project_id), order) == []
        others = {"organization_id": red.organization_id, "project_id": blue.project_id}
        assert await listed(store, replace(where, **others), order) == []


async def test_one_is_found_by_its_owner_alone(store: Store, red: Owner, blue: Owner) -> None:
    await keep(store, [kept_row(1, red, session="s"), kept_row(2, red, session="s"), kept_row(3, blue, session="s")])
    mine = KeptFilter(organization_id=red.organization_id)
    async with store.reading() as session:
        row, packed = await find_kept(session, f"{1:032x}", mine)
        assert (row.project_id, packed) == (red.project_id, f"{1:032x}".encode())
        assert [int(each.id, 16) for each in await session_of(session, "s", mine)] == [1, 2]
        for missing in (f"{3:032x}", "nothing"):
            with pytest.raises(NotFoundError, match="not kept"):
                await find_kept(session, missing, mine)


async def test_those_of_its_shape_are_found(store: Store, red: Owner, blue: Owner) -> None:
    rows = [kept_row(n, red, input_tokens=tokens, output_tokens=20) for n, tokens in enumerate([100, 90, 120, 50, 200])]
    others = [{"output_tokens": 90}, {"model": "large"}, {"outcome": "failed"}, {"endpoint": "/v1/completions"}]
    rows += [kept_row(n, red, **({"input_tokens": 100} | columns)) for n, columns in enumerate(others, 10)]
    await keep(store, [*rows, kept_row(20, blue, input_tokens=100)])
    async with store.reading() as session:
        of, _ = await find_kept(session, f"{0:032x}", ANY)
        mine = KeptFilter(organization_id=red.organization_id)
        found = await details_of_shape(session, of, mine, 10)
    assert {int(each, 16) for each in found} == {1, 2}


async def test_a_deleted_organisation_does_not_keep_others_from_being_written(store: Store, red: Owner) -> None:
    gone = Owner("org-gone", "proj_gone")
    assert await keep(store, [kept_row(1, red), kept_row(2, gone), kept_row(3, gone)]) == {"ordinary": 1}
    assert await listed(store) == [1]


async def test_they_go_with_their_organisation_and_at_their_age(store: Store, red: Owner, blue: Owner) -> None:
    day_us = 86_400 * 1_000_000
    now = store.now
    store.now = lambda: START_US / 1e6 + 20 * 86_400
    await keep(store, [kept_row(1, red), kept_row(2, red, started_us=START_US + 10 * day_us), kept_row(3, blue)])
    await keep(store, [kept_row(4, blue, started_us=START_US + 19 * day_us)])
    swept = await delete_expired(store, RetentionConfig(kept_requests_days=14))
    assert (swept.deleted["kept_requests"], swept.failures) == (2, {})
    assert sorted(await listed(store)) == [2, 4]
    await delete_organization_data(store, red.organization_id)
    assert await listed(store) == [4]
    assert await count(store, KeptDetail) == 1
    store.now = now


@pytest.mark.parametrize(
    ("held", "total", "share"),
    [([], 10, 10), ([3, 4], 10, 10), ([30, 4], 10, 6), ([30, 40], 10, 5), ([1, 30, 40], 10, 4), ([5], 0, 0)],
)
def test_what_is_too_much_is_taken_from_those_who_hold_most(held: list[int], total: int, share: int) -> None:
    assert fair_share(held, total) == share
    assert sum(min(each, share) for each in held) <= total


async def test_the_oldest_ordinary_ones_of_those_who_keep_most_go_first(store: Store, red: Owner, blue: Owner) -> None:
    reasons = ["error", "ordinary", "refused", "ordinary", "slow", "ordinary"]
    await keep(store, [kept_row(n, red, reason=reason) for n, reason in enumerate(reasons)])
    await keep(store, [kept_row(10, blue)])
    assert await bound_kept(store, 7, 1 << 40) == 0
    assert await bound_kept(store, 5, 1 << 40) == 2
    assert sorted(await listed(store)) == [0, 2, 4, 5, 10]
    assert await bound_kept(store, 100, 1500 * 3) == 2, "by bytes: ordinary ones are left in none but blue's"
    assert sorted(await listed(store)) == [0, 4, 10]


async def test_every_list_of_many_is_read_by_an_index_in_its_order(store: Store, red: Owner, blue: Owner) -> None:
    await fill(store, red, blue)
    large, small = {"organization_id": red.organization_id}, {"organization_id": blue.organization_id}
    mine = {"project_id": red.project_id}
    some: list[dict[str, Any]] = [
        {},
        *({"key_id": "key_7"}, {"session": "s-77"}, {"end_user": "user-7"}, {"model": "model-1"}),
        *({"model_version": "rare"}, {"endpoint": "/v1/rerank"}, {"statuses": (500, 599)}, {"reason": "error"}),
        *({"statuses": (200, 299)}, {"reason": "ordinary"}, {"id": "r77777"}, {"id": "req-r7777"}),
        *({"since_us": START_US + (ROWS - 500) * 1000}, {"since_us": START_US + 500}, {"min_total_us": 4_999_000}),
        *({"min_total_us": 10}, {"model": "model-1", "statuses": (500, 599)}, {"model": "model-1", "key_id": "key_7"}),
    ]
    async with query_plans(store, "kept_requests") as plans, store.reading() as session:
        for scope in ({}, large, small, mine):
            for where in some:
                for order in KeptOrder:
                    page = await list_kept(session, KeptFilter(**scope, **where), order, 50)
                    assert page.items or scope == small, (scope, where)
    whole = "SCAN kept_requests" if store.is_sqlite else "Seq Scan"
    unread = [plan for plan in plans if whole in plan and "INDEX" not in plan and "Aggregate" not in plan]
    assert len(plans) >= 8 * len(some) and not unread, unread[:3]
