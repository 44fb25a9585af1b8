"""The ledger's requests as recorded traffic: those that a model answered, with the sessions of those that are kept."""

from __future__ import annotations

import msgspec

from kept_rows import kept_row
from kvarn.store.engine import Store
from kvarn.store.ids import new_id
from kvarn.store.ledger import UsageFilter
from kvarn.store.repositories.kept_requests import add_kept
from kvarn.store.repositories.usage import events as usage_events
from kvarn.store.repositories.usage.recorded import recorded_requests
from new_tenants import create_organization
from sample_usage import make_event

AT = 1_790_000_000


async def test_answered_requests_come_with_their_milliseconds_and_sessions(store: Store) -> None:
    owner = (await create_organization(store, "red")).owner
    of = {"organization_id": owner.organization_id, "project_id": owner.project_id}
    kept = f"{AT * 1000 + 750:012x}{new_id('')[12:]}"
    events = [
        make_event(0, **of, duration_ms=4000, finished_at=AT + 5),
        make_event(1, **of, cache="exact"),
        make_event(2, **of, outcome="failed"),
        make_event(3, **of, output_tokens=0),
        make_event(4, finished_at=AT + 3600),
        make_event(5, model="other", finished_at=AT + 2),
    ]
    events[0] = msgspec.structs.replace(events[0], id=f"use_{kept}")
    await usage_events.record(store, events)
    row = kept_row(1, owner, id=kept, session="chat")
    await add_kept(store, [row], {kept: b""})
    found = await recorded_requests(store, UsageFilter(), start=AT, end=AT + 60, limit=10)
    assert [(each.started_s - AT, each.session, each.model) for each in found] == [
        (0.0, "", "other"),
        (0.75, "chat", "tiny"),
    ]
    assert (found[1].took_s, found[1].input_tokens, found[1].cached_tokens, found[1].output_tokens) == (4.0, 10, 4, 5)
    only = await recorded_requests(store, UsageFilter(models=("tiny",)), start=AT, end=AT + 60, limit=10)
    assert [each.model for each in only] == ["tiny"]
    assert len(await recorded_requests(store, UsageFilter(), start=AT, end=AT + 60, limit=1)) == 1
