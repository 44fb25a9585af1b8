"""Stored chat completions on both databases."""

from __future__ import annotations

import pytest

from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.models import StoredCompletion
from kvarn.store.owner import Owner
from kvarn.store.repositories.conversations.stored_completions import (
    add_completion,
    change_metadata,
    list_completions,
)
from kvarn.store.repositories.pages import Cursor
from kvarn.store.repositories.queries import delete_owned, read_owned
from new_tenants import create_organization

ODD = "a \"b\" 'c' $.[0] %s ö"


async def keep(store: Store, owner: Owner, name: str, created: int = 1, **metadata: str) -> None:
    body = {"id": name, "created": created, "model": "m", "choices": [{"text": "NUL \x00 and \\u0000"}]}
    await add_completion(store, owner, body, metadata=metadata, messages=[{"role": "user", "content": "\x00"}])


async def test_it_is_read_changed_and_deleted_by_its_owner_alone(store: Store) -> None:
    mine, other = [(await create_organization(store, name)).owner for name in ("mine", "other")]
    await keep(store, mine, "one", a="1")
    assert (await read_owned(store, mine, StoredCompletion, "one")).body["choices"] == [
        {"text": "NUL \x00 and \\u0000"}
    ]
    changed = await change_metadata(store, mine, "one", {"b": "2"})
    assert changed.extra == (await read_owned(store, mine, StoredCompletion, "one")).extra == {"b": "2"}
    for owner in (other, Owner(mine.organization_id, other.project_id), Owner(other.organization_id, mine.project_id)):
        with pytest.raises(NotFoundError):
            await read_owned(store, owner, StoredCompletion, "one")
        with pytest.raises(NotFoundError):
            await change_metadata(store, owner, "one", {})
        with pytest.raises(NotFoundError):
            await delete_owned(store, owner, StoredCompletion, "one")
        assert (await list_completions(store, owner, Cursor())).items == []
    await delete_owned(store, mine, StoredCompletion, "one")
    with pytest.raises(NotFoundError):
        await read_owned(store, mine, StoredCompletion, "one")


async def test_lists_are_filtered_by_metadata_with_any_key(store: Store) -> None:
    owner = (await create_organization(store, "mine")).owner
    await keep(store, owner, "one", 1, **{ODD: "x", "k": "1"})
    await keep(store, owner, "two", 2, **{ODD: "x", "k": "2"})
    await keep(store, owner, "three", 3, **{ODD: "y", "nul": "\0"})

    async def names(**metadata: str) -> list[str]:
        page = await list_completions(store, owner, Cursor(ascending=True), metadata=metadata)
        return [each.id for each in page.items]

    assert await names() == ["one", "two", "three"]
    assert await names(**{ODD: "x"}) == ["one", "two"]
    assert await names(**{ODD: "x", "k": "2"}) == ["two"]
    assert await names(k="3") == []
    assert await names(nul="\ufffd") == ["three"], "which PostgreSQL cannot hold"
