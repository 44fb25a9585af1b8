"""What reports say is exactly what the events come to, wherever the time that is asked for begins and ends."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select

from kvarn.store.engine import Store
from kvarn.store.ledger import HOUR_S, LedgerEvent, UsageFilter, UsageSum
from kvarn.store.models import UsageEvent, UsageHour
from kvarn.store.repositories.usage import events as usage_events
from kvarn.store.repositories.usage.sums import GROUPS, sums
from profiles import examples
from query_plans import query_plans
from sample_usage import make_event

START = 1_790_000_000 // 86_400 * 86_400 + 22 * HOUR_S
"""Two hours before midnight."""
FIELDS = {"api_key_id": "key_id"}
numbers = itertools.count()

moments = st.one_of(
    st.integers(START, START + 5 * HOUR_S),
    st.integers(0, 5).map(lambda hour: START + hour * HOUR_S),
    st.integers(1, 5).map(lambda hour: START + hour * HOUR_S - 1),
)
events = st.builds(
    make_event,
    st.integers(0, 30),
    finished_at=moments,
    project_id=st.sampled_from(["proj_a", "proj_b"]),
    user_id=st.sampled_from([None, "user-1", ""]),
    key_id=st.sampled_from([None, "key_1", "key_2"]),
    model=st.sampled_from(["tiny", "other"]),
    endpoint=st.sampled_from(["/v1/chat/completions", "/v1/embeddings"]),
    service_tier=st.sampled_from(["default", "batch"]),
    batch_id=st.sampled_from([None, "batch_1", "batch_2"]),
    outcome=st.sampled_from(["finished", "lost"]),
    input_tokens=st.integers(0, 1 << 40),
    cost=st.integers(0, 1 << 40),
    currency=st.sampled_from(["usd", "eur"]),
)
some = st.none() | st.sampled_from([(), ("tiny",), ("user-1", "key_1", "/v1/embeddings", "other")])
filters = st.builds(
    UsageFilter,
    project_ids=st.none() | st.just(("proj_a",)),
    user_ids=some,
    key_ids=some,
    models=some,
    endpoints=some,
    not_endpoints=st.sampled_from([(), ("/v1/embeddings",)]),
    batch=st.sampled_from([None, True, False]),
    batch_ids=st.sampled_from([None, ("batch_1",), ("batch_2", "batch_3")]),
)


def value(event: LedgerEvent, name: str) -> Any:
    if name == "batch":
        return "true" if event.service_tier == "batch" else "false"
    return getattr(event, FIELDS.get(name, name)) or None


def passes(event: LedgerEvent, where: UsageFilter) -> bool:
    wanted = {
        "organization_id": where.organization_id and (where.organization_id,),
        "project_id": where.project_ids,
        "user_id": where.user_ids,
        "api_key_id": where.key_ids,
        "model": where.models,
        "endpoint": where.endpoints,
        "batch": None if where.batch is None else (str(where.batch).lower(),),
        "batch_id": where.batch_ids,
    }
    return event.endpoint not in where.not_endpoints and all(
        values is None or value(event, name) in values for name, values in wanted.items()
    )


def plain_sums(
    written: Sequence[LedgerEvent], where: UsageFilter, start: int, end: int, width: int, group_by: Sequence[str]
) -> list[UsageSum]:
    found: dict[Any, list[LedgerEvent]] = defaultdict(list)
    for event in written:
        if start <= event.finished_at < end and passes(event, where):
            bucket = event.finished_at - event.finished_at % width if width else 0
            found[bucket, tuple(value(event, name) for name in group_by), event.currency].append(event)
    return [
        UsageSum(
            bucket,
            dict(zip(group_by, group, strict=True)),
            len(each),
            *[sum(getattr(event, f"{name}_tokens") for event in each) for name in ("input", "cached", "output")],
            sum(event.cost for event in each),
            currency,
        )
        for (bucket, group, currency), each in found.items()
    ]


def in_order(found: Sequence[UsageSum]) -> list[UsageSum]:
    return sorted(found, key=lambda each: (each.start, str(each.group), each.currency))


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.lists(events, max_size=12), max_size=4),
    where=filters,
    between=st.tuples(moments, moments).map(sorted),
    width=st.sampled_from([0, 60, HOUR_S, 24 * HOUR_S]),
    group_by=st.lists(st.sampled_from([*GROUPS, "batch"]), unique=True, max_size=3),
)
async def test_sums_are_those_of_the_events(
    store: Store, batches: Any, where: UsageFilter, between: Any, width: int, group_by: Any
) -> None:
    organization = f"org-{next(numbers)}"
    where = UsageFilter(**{**_fields(where), "organization_id": organization})
    written: dict[str, LedgerEvent] = {}
    for batch in batches:
        mine = [_of(event, organization) for event in batch]
        await usage_events.record(store, mine)
        for event in mine:
            written.setdefault(event.id, event)  # an event that comes again changes nothing
    start, end = between
    asked = {"start": start, "end": end + 1, "width": width}
    expected = plain_sums(list(written.values()), where, *asked.values(), group_by)
    assert in_order(await sums(store, where, **asked, group_by=group_by)) == in_order(expected)


def _fields(where: UsageFilter) -> dict[str, Any]:
    return {name: getattr(where, name) for name in UsageFilter.__slots__}


def _of(event: LedgerEvent, organization: str) -> LedgerEvent:
    number = int(event.id.removeprefix("use_"))
    fields = {name: getattr(event, name) for name in LedgerEvent.__struct_fields__}
    return LedgerEvent(**{**fields, "id": f"{organization}-{number}", "organization_id": organization})


async def test_whole_hours_are_not_counted_again(store: Store) -> None:
    """So that a report of a year reads hours, not all events of the year."""
    await usage_events.record(store, [make_event(number, finished_at=START + number * 600) for number in range(24)])
    async with store.transaction() as session:
        inside = UsageEvent.finished_at >= START + HOUR_S, UsageEvent.finished_at < START + 3 * HOUR_S
        await session.execute(delete(UsageEvent).where(*inside))
    (total,) = await sums(store, UsageFilter(), start=START + 600, end=START + 4 * HOUR_S - 600)
    assert total.requests == 22
    async with store.reading() as session:
        assert len((await session.scalars(select(UsageHour.requests))).all()) == 4


async def test_an_hour_of_many_batches_is_one_row_and_one_batch_is_found_by_an_index(store: Store) -> None:
    batches = [f"batch_{number}" for number in range(2000)]
    for first in range(0, len(batches), 500):
        mine = enumerate(batches[first : first + 500], first)
        await usage_events.record(
            store, [make_event(number, finished_at=START, batch_id=batch) for number, batch in mine]
        )
    async with store.reading() as session:
        assert (await session.scalars(select(UsageHour.requests))).all() == [2000]
    async with query_plans(store, "usage_events") as plans:
        found = await sums(store, UsageFilter(batch_ids=("batch_7",)), start=0, end=START + HOUR_S)
    assert [each.requests for each in found] == [1]
    assert "ix_usage_events_batch_id" in "".join(plans)


@pytest.mark.parametrize("width", [60, HOUR_S])
async def test_nothing_is_summed_of_no_time(store: Store, width: int) -> None:
    await usage_events.record(store, [make_event(1, finished_at=START)])
    assert await sums(store, UsageFilter(), start=START, end=START, width=width) == []
