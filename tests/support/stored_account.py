"""What an organisation has stored, added up from its rows: what the account must say."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select

from kvarn.store.engine import Store
from kvarn.store.models import (
    Batch,
    BatchLine,
    Conversation,
    ConversationItem,
    File,
    PromptSample,
    StoredCompletion,
    StoredResponse,
)
from kvarn.store.repositories.batches.batches import OVER
from kvarn.store.repositories.stored_bytes import PART_BYTES, ROW_BYTES, json_bytes, read_stored_bytes


async def recount(store: Store, organization_id: str) -> int:
    """Bytes of all that is there, by its content; fails where a row says otherwise of itself."""
    total = 0
    async with store.reading() as session:

        async def rows(model: Any) -> list[Any]:
            return list(await session.scalars(select(model).where(model.organization_id == organization_id)))

        for conversation in await rows(Conversation):
            of_it = select(ConversationItem).where(ConversationItem.conversation_id == conversation.id)
            items = [PART_BYTES + json_bytes(each.item) for each in await session.scalars(of_it)]
            _agree(conversation, ROW_BYTES + json_bytes(conversation.extra) + sum(items))
            total += conversation.counted_bytes
        for response in await rows(StoredResponse):
            content = (response.body, response.input_items, response.cuts)
            request = json_bytes(response.request) if response.background else 0
            _agree(response, ROW_BYTES + json_bytes(*content) + request)
            total += response.counted_bytes
        for completion in await rows(StoredCompletion):
            _agree(completion, ROW_BYTES + json_bytes(completion.extra, completion.messages, completion.body))
            total += completion.counted_bytes
        for sample in await rows(PromptSample):
            _agree(sample, ROW_BYTES + len(sample.sealed))
            total += sample.counted_bytes
        for batch in await rows(Batch):
            itself = ROW_BYTES + json_bytes(batch.extra) + json_bytes(batch.errors) - json_bytes([])
            _agree(batch, itself + batch.reserved_bytes)
            total += batch.counted_bytes
            for line in await session.scalars(select(BatchLine).where(BatchLine.batch_id == batch.id)):
                texts = (line.custom_id, line.model, line.body, line.answer or b"")
                total += (batch.status not in OVER) * (PART_BYTES + sum(map(len, texts)))
        for file in await rows(File):
            total += file.counted * (ROW_BYTES + file.size)
        assert not await session.scalar(select(func.count()).where(ConversationItem.counted_bytes == 0))
    return total


async def account(store: Store, organization_id: str) -> int:
    """What the account says, which is what there is."""
    said = await read_stored_bytes(store, organization_id)
    assert said == await recount(store, organization_id)
    return said


def _agree(row: Any, size: int) -> None:
    assert row.counted_bytes == size, row.id
