"""What is kept too long goes, what is not stays: on both databases, with a clock that a test moves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from sqlalchemy import func, select, update

from kvarn.config.platform import RetentionConfig
from kvarn.store.engine import Store
from kvarn.store.models import (
    Batch,
    BatchLine,
    Conversation,
    ConversationItem,
    File,
    FileChunk,
    Organization,
    PromptSample,
    StoredCompletion,
    StoredResponse,
)
from kvarn.store.owner import Owner, Principal
from kvarn.store.repositories.batches.batches import create_batch
from kvarn.store.repositories.batches.lines import Line, add_lines
from kvarn.store.repositories.conversations.conversations import Lock, create_conversation, lock_conversation
from kvarn.store.repositories.files import FileWriter, publish_file
from kvarn.store.repositories.organization_deletion import delete_organization_data
from kvarn.store.repositories.retention import delete_expired
from new_tenants import create_organization
from retention_sweeps import sweeps

DAY = 24 * 3600
NOW = 2_000_000_000
TABLES = (
    Conversation,
    ConversationItem,
    StoredResponse,
    StoredCompletion,
    Batch,
    BatchLine,
    File,
    FileChunk,
    PromptSample,
)


@pytest.fixture
def clock(store: Store) -> Any:
    """Moves the database's clock: `clock(days)` after the beginning."""

    def move(days: float) -> None:
        store.now = lambda: NOW + days * DAY

    move(0)
    return move


async def keep_file(store: Store, owner: Owner, expires_at: int | None = None, chunks: int = 2) -> str:
    writer = FileWriter(store, owner)
    await writer.write(b"x" * 256 * 1024 * chunks)
    file_id = await writer.finish()
    fields = {"filename": "a", "purpose": "batch"}
    async with store.transaction() as session:
        await publish_file(session, file_id, now=int(store.now()), expires_at=expires_at, **fields)
    return file_id


async def keep_one_of_each(store: Store, who: Principal) -> None:
    """One object of every kind, as old as the clock says."""
    now, owner = int(store.now()), who.owner
    mine: dict[str, Any] = {"organization_id": owner.organization_id, "project_id": owner.project_id}
    marks = {**mine, "created_at": now}
    name = f"{owner.organization_id[-12:]}-{now}"
    conversation = Conversation(id=f"conv_{name}", changed_at=now, extra={}, num_items=1, **marks)
    item = ConversationItem(id=f"msg_{name}", conversation_id=conversation.id, position=0, created_at=now, item={})
    empty: dict[str, Any] = {"input_items": [], "body": {}, "request": {}, "cuts": []}
    done = StoredResponse(id=f"resp_{name}", status="completed", **empty, **marks)
    running = StoredResponse(id=f"resp_r{name}", status="in_progress", **empty, **marks)
    completion = StoredCompletion(id=f"chatcmpl-{name}", model="m", extra={}, messages=[], body={}, **marks)
    async with store.transaction() as session:
        session.add(conversation)
        await session.flush()
        session.add_all([item, done, running, completion])
        session.add(PromptSample(request_id="r", model="m", sealed=b"", **marks))
    asked = {"endpoint": "/v1/chat/completions", "input_file_id": "file-x", "window_s": 1}
    over, open_one = [
        await create_batch(store, who, metadata=None, output_expires_after_s=None, **asked) for _ in range(2)
    ]
    for batch in (over, open_one):
        await add_lines(store, batch.id, [Line(n, f"c{n}", b"{}") for n in range(1, 4)])
    async with store.transaction() as session:
        await session.execute(update(Batch).where(Batch.id == over.id).values(status="completed"))
    await keep_file(store, owner)


async def sweep(store: Store, config: RetentionConfig) -> Counter[str]:
    """What a sweep deletes in which nothing fails."""
    swept = await delete_expired(store, config)
    assert not swept.failures
    return +swept.deleted


async def counts(store: Store, organization_id: str | None = None) -> dict[str, int]:
    """Rows of each table, of one organisation or of all."""
    found: dict[str, int] = {}
    async with store.reading() as session:
        for table in TABLES:
            query = select(func.count()).select_from(table)
            if organization_id is not None:
                if not hasattr(table, "organization_id"):
                    continue
                query = query.where(table.organization_id == organization_id)
            found[table.__tablename__] = int(await session.scalar(query) or 0)
    return found


async def test_the_server_keeps_each_kind_for_its_days(store: Store, clock: Any) -> None:
    who = await create_organization(store, "red")
    await keep_one_of_each(store, who)
    config = RetentionConfig(conversations_days=10, responses_days=20, files_days=30, prompt_samples_days=40)
    clock(9.9)
    assert sum((await sweep(store, config)).values()) == 0
    seen = []
    for days in (10, 20, 30, 40):
        clock(days)
        seen.append({name for name, count in (await sweep(store, config)).items() if count})
    assert seen == [{"conversations"}, {"responses", "stored_completions"}, {"batches", "files"}, {"prompt_samples"}]
    left = {name: count for name, count in (await counts(store)).items() if count}
    assert left == {"responses": 1, "batches": 1, "batch_lines": 3}  # those that are not over


async def test_without_days_things_stay(store: Store, clock: Any) -> None:
    await keep_one_of_each(store, await create_organization(store, "red"))
    clock(10_000)
    deleted = await sweep(store, RetentionConfig(responses_days=20_000, prompt_samples_days=20_000))
    assert sum(deleted.values()) == 0


async def test_an_organisation_may_want_less_never_more(store: Store, clock: Any) -> None:
    red, blue, green = [await create_organization(store, name) for name in ("red", "blue", "green")]
    async with store.transaction() as session:
        for who, days in ((red, 5), (blue, 50)):
            row = update(Organization).where(Organization.id == who.organization_id)
            await session.execute(row.values(retention_days=days))
    for who in (red, blue, green):
        await keep_one_of_each(store, who)
    config = RetentionConfig(conversations_days=20, responses_days=20, files_days=20, prompt_samples_days=20)
    clock(5)
    assert dict(await sweep(store, config)) == {
        "conversations": 1,
        "responses": 1,
        "stored_completions": 1,
        "batches": 1,
        "files": 1,
        "prompt_samples": 1,
    }
    assert (await counts(store, red.organization_id))["conversations"] == 0
    clock(20)
    assert (await sweep(store, config))["conversations"] == 2
    assert (await counts(store, blue.organization_id))["files"] == 0


async def test_a_conversation_that_goes_on_stays(store: Store, clock: Any) -> None:
    await keep_one_of_each(store, await create_organization(store, "red"))
    async with store.transaction() as session:
        await session.execute(update(Conversation).values(changed_at=NOW + 9 * DAY))
    clock(10)
    assert (await sweep(store, RetentionConfig(conversations_days=10)))["conversations"] == 0
    assert (await counts(store))["conversation_items"] == 1


async def test_a_conversation_stays_while_a_response_is_made_in_it(store: Store, clock: Any) -> None:
    who = await create_organization(store, "red")
    conversation = await create_conversation(store, who.owner, {}, [])
    config = RetentionConfig(conversations_days=10)
    clock(30)
    await lock_conversation(store, who.owner, Lock(conversation.id, "resp_1"), seconds=60)
    assert (await sweep(store, config))["conversations"] == 0
    clock(30 + 61 / DAY)  # its gateway died: the hold has run out
    assert (await sweep(store, config))["conversations"] == 1
    held = await create_conversation(store, who.owner, {}, [])
    await lock_conversation(store, who.owner, Lock(held.id, "resp_2"), seconds=60)
    assert (await delete_organization_data(store, who.organization_id))["conversations"] == 1


async def test_files_go_at_their_own_expiry_and_unfinished_ones_after_a_day(store: Store, clock: Any) -> None:
    who = await create_organization(store, "red")
    await keep_file(store, who.owner, expires_at=NOW + 2 * DAY)
    await keep_file(store, who.owner, expires_at=NOW + 90 * DAY)
    await FileWriter(store, who.owner).write(b"x" * 1024 * 1024)  # its gateway was killed
    config = RetentionConfig(files_days=30)
    clock(1)
    assert (await sweep(store, config))["files"] == 1
    clock(2)
    assert (await sweep(store, config))["files"] == 1
    clock(60)  # the server's days are for files without an expiry of their own
    assert (await sweep(store, config))["files"] == 0
    assert (await counts(store))["file_chunks"] == 2


async def test_one_gateway_sweeps_once_in_an_interval(store: Store, clock: Any) -> None:
    config = RetentionConfig(sweep_interval_s=3600)
    assert [await sweeps(store, config) for _ in range(3)] == [True, False, False]
    clock(3601 / DAY)
    assert [await sweeps(store, config) for _ in range(2)] == [True, False]
