"""What an organisation stores, added up from its rows: what the account must say after the next sum."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select

from kvarn.store.engine import Store
from kvarn.store.models import (
    Batch,
    Conversation,
    ConversationItem,
    File,
    Organization,
    PromptSample,
    StoredCompletion,
    StoredResponse,
)
from kvarn.store.repositories.stored_bytes import ITEM_BYTES, ROW_BYTES, json_bytes, sum_stored_bytes


async def file_bytes(store: Store, organization_id: str) -> int:
    """What the account says of files, which is what there is at any moment."""
    async with store.reading() as session:
        said = await session.scalar(select(Organization.file_bytes).where(Organization.id == organization_id))
        size = func.coalesce(func.sum(File.size + ROW_BYTES), 0)
        there = await session.scalar(select(size).where(File.organization_id == organization_id, File.counted))
    assert said == there
    return int(said or 0)


async def account(store: Store, organization_id: str) -> int:
    """Sum, and read what is stored; fails where a row says other than what is in it."""
    await sum_stored_bytes(store)
    total = await file_bytes(store, organization_id)
    async with store.reading() as session:

        async def rows(model: Any) -> list[Any]:
            return list(await session.scalars(select(model).where(model.organization_id == organization_id)))

        for conversation in await rows(Conversation):
            of_it = select(ConversationItem).where(ConversationItem.conversation_id == conversation.id)
            items = [ITEM_BYTES + json_bytes(each.item) for each in await session.scalars(of_it)]
            total += _agree(conversation, ROW_BYTES + json_bytes(conversation.extra) + sum(items))
        for response in await rows(StoredResponse):
            content = (response.body, response.input_items, response.cuts)
            request = json_bytes(response.request) if response.background else 0
            total += _agree(response, ROW_BYTES + json_bytes(*content) + request)
        for completion in await rows(StoredCompletion):
            content = (completion.extra, completion.messages, completion.body)
            total += _agree(completion, ROW_BYTES + json_bytes(*content))
        for sample in await rows(PromptSample):
            total += _agree(sample, ROW_BYTES + len(sample.sealed))
        total += sum(batch.counted_bytes for batch in await rows(Batch))
        organization = await session.get(Organization, organization_id)
    assert organization is not None and organization.stored_bytes == total
    return total


def _agree(row: Any, size: int) -> int:
    assert row.counted_bytes == size, row.id
    return size
