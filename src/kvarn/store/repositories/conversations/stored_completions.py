"""Chat completions that their clients asked to keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvarn.store.engine import Store
from kvarn.store.models import StoredCompletion
from kvarn.store.owner import Owner
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import find_owned, given_values, has_entry, owned_by
from kvarn.store.repositories.stored_bytes import ROW_BYTES, json_bytes


async def add_completion(
    store: Store, owner: Owner, body: Mapping[str, Any], *, metadata: Mapping[str, str], messages: list[dict[str, Any]]
) -> None:
    """Keep a completion of these `messages`. It has been made: it is kept however much its organisation has stored."""
    extra, kept = _without_nul(metadata), {name: value for name, value in body.items() if name != "metadata"}
    counted = ROW_BYTES + json_bytes(extra, messages, kept)
    async with store.transaction() as session:
        session.add(
            StoredCompletion(
                id=body["id"],
                organization_id=owner.organization_id,
                project_id=owner.project_id,
                created_at=body["created"],
                model=body["model"],
                extra=extra,
                messages=messages,
                body=kept,
                counted_bytes=counted,
            )
        )


async def list_completions(
    store: Store, owner: Owner, cursor: Cursor, *, model: str | None = None, metadata: Mapping[str, str] | None = None
) -> Page[StoredCompletion]:
    query = owned_by(owner, StoredCompletion).where(*given_values((StoredCompletion.model, model)))
    async with store.reading() as session:
        for key, value in (metadata or {}).items():
            query = query.where(has_entry(session, StoredCompletion.extra, key, value))
        return await read_page(session, query, cursor, (StoredCompletion.created_at, StoredCompletion.id))


async def change_metadata(
    store: Store, owner: Owner, completion_id: str, metadata: Mapping[str, str]
) -> StoredCompletion:
    async with store.transaction() as session:
        stored = await find_owned(session, owner, StoredCompletion, completion_id, to_change=True)
        extra = _without_nul(metadata)
        stored.counted_bytes += json_bytes(extra) - json_bytes(stored.extra)
        stored.extra = extra
        return stored


def _without_nul(metadata: Mapping[str, str]) -> dict[str, str]:
    """Metadata in which PostgreSQL can search: its JSONB has no NUL character, so U+FFFD stands for it."""
    return {key.replace("\0", "\ufffd"): value.replace("\0", "\ufffd") for key, value in metadata.items()}
