"""A database made by an earlier version is opened with all that is in it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from sqlalchemy import func, make_url, select

from kvarn.store import migrate
from kvarn.store.engine import Store
from kvarn.store.ledger import UsageFilter
from kvarn.store.models import Base, OutboxEntry, StoredCompletion
from kvarn.store.owner import Owner
from kvarn.store.repositories.batches.batches import list_batches
from kvarn.store.repositories.batches.lines import FIRST, open_lines, read_line
from kvarn.store.repositories.contents import read_content
from kvarn.store.repositories.conversations import conversations, responses
from kvarn.store.repositories.files import list_files
from kvarn.store.repositories.pages import Cursor
from kvarn.store.repositories.queries import read_owned
from kvarn.store.repositories.tenants.principals import find_grant
from kvarn.store.repositories.usage import billing, budgets, sums
from stored_account import account

DUMP = Path(__file__).with_name("database_2026_11.sql")
NOW = 1_790_000_000
LATER = {"deployments", "deployment_versions", "rollouts", "rollout_samples", "uploads", "changes", "version_numbers"}
LATER |= {"console_sessions", "kept_requests", "kept_details", "feedback"}
LATER |= {"vector_stores", "vector_store_files", "vector_store_file_batches", "tool_calls", "tool_servers"}
LATER |= {"chunks", "chunk_files", "chunk_stores", "chunk_vectors", "containers"}
LATER |= {"evaluation_sets", "evaluation_set_versions", "evaluation_runs", "evaluation_results"}
"""Tables that the earlier version did not have."""


@pytest.fixture
async def old(tmp_path: Path) -> AsyncGenerator[Store, None]:
    path = tmp_path / "kvarn.db"
    database = sqlite3.connect(path)
    database.executescript(DUMP.read_text(encoding="utf-8"))
    database.close()
    store = Store(make_url(f"sqlite+aiosqlite:///{path}"), now=lambda: NOW + 1.0)
    await migrate.upgrade(store)
    yield store
    await store.close()


def owner() -> tuple[Owner, str]:
    """Whose all of it is, and their key's lookup."""
    text = DUMP.read_text(encoding="utf-8")
    organization = re.search(r"'(org-[0-9a-f]{20,})'", text)
    project = re.search(r"'(proj_[0-9a-f]{20,})'", text)
    key = re.search(r"Key: kv-(\w{12})", text)
    assert organization and project and key
    return Owner(organization[1], project[1]), key[1]


async def test_every_table_has_its_rows(old: Store) -> None:
    await migrate.check(old)
    async with old.reading() as session:
        for table in Base.metadata.sorted_tables:
            if table.name in LATER:
                continue
            assert await session.scalar(select(func.count()).select_from(table)), table.name


async def test_what_was_stored_is_read(old: Store) -> None:
    mine, lookup = owner()
    async with old.reading() as session:
        grant = await find_grant(session, lookup, NOW)
        assert grant is not None and grant.principal is not None
        assert grant.principal.owner == mine and grant.principal.weight == 2.0
        assert [rule.requests_per_minute for rule in grant.principal.limits] == [7]
        (waiting,) = (await session.execute(select(func.count()).select_from(OutboxEntry))).one()
    assert waiting == 3
    (rule,), spent = await budgets.read_budgets(old)
    assert spent[rule.id] == 45 and rule.hard_limit == 1000
    (total,) = await sums.sums(old, UsageFilter(), start=0, end=2 * NOW)
    assert (total.requests, total.cost) == (3, 3000)
    assert [len(events) async for events in billing.unbilled(old)] == [1]
    turns = await responses.read_chain(old, mine, "resp_2")
    assert [turn.id for turn in turns] == ["resp_1", "resp_2"]
    assert (await read_owned(old, mine, StoredCompletion, "chatcmpl-1")).extra == {"a": "b"}
    (file,) = (await list_files(old, mine, Cursor())).items
    assert b"".join([chunk async for chunk in read_content(old, file)]) == b"line\n" * 3
    (batch,) = (await list_batches(old, mine, Cursor())).items
    (line,) = await open_lines(old, batch.id, FIRST, 10)
    assert (await read_line(old, batch.id, line.line)).custom_id == "c1"


async def test_conversations_go_on_and_the_account_stays_true(old: Store) -> None:
    mine, _ = owner()
    async with old.reading() as session:
        conversation_id = await session.scalar(select(Base.metadata.tables["conversations"].c.id))
    before = await account(old, mine.organization_id)
    await conversations.add_items(old, mine, conversation_id, [{"id": "msg_9", "type": "message"}])
    assert len(await conversations.read_history(old, mine, conversation_id)) == 2
    assert await account(old, mine.organization_id) > before > 0
