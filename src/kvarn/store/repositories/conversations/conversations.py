"""Conversations and their items."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError
from kvarn.store.ids import is_id, new_id
from kvarn.store.models import Conversation, ConversationItem
from kvarn.store.owner import Owner
from kvarn.store.repositories.conversations.histories import Item, check_measure, size_of, text_of
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import find_owned, is_owned_by, owned_by
from kvarn.store.repositories.stored_bytes import ITEM_BYTES, ROW_BYTES, json_bytes, storing


@dataclass(frozen=True, slots=True)
class Lock:
    """A response's hold on a conversation: no other request adds to it meanwhile."""

    conversation_id: str
    response_id: str


class ConversationLockedError(ConflictError):
    """A response is being made in the conversation."""


async def create_conversation(store: Store, owner: Owner, metadata: dict[str, str], items: list[Item]) -> Conversation:
    now = int(store.now())
    conversation = Conversation(
        id=new_id("conv_"),
        organization_id=owner.organization_id,
        project_id=owner.project_id,
        created_at=now,
        changed_at=now,
        extra=metadata,
        num_items=0,
        counted_bytes=ROW_BYTES + json_bytes(metadata),
    )
    size = conversation.counted_bytes + _bytes_of(items)
    async with storing(store, owner.organization_id, size) as session:
        session.add(conversation)
        await session.flush()
        await append_items(session, conversation, items, now)
    return conversation


async def update_conversation(
    store: Store, owner: Owner, conversation_id: str, metadata: dict[str, str]
) -> Conversation:
    async with store.transaction() as session:
        conversation = await find_owned(session, owner, Conversation, conversation_id, to_change=True)
        conversation.counted_bytes += json_bytes(metadata) - json_bytes(conversation.extra)
        conversation.extra = metadata
        conversation.changed_at = int(store.now())
    return conversation


async def list_conversations(store: Store, owner: Owner, cursor: Cursor) -> Page[Conversation]:
    async with store.reading() as session:
        return await read_page(
            session, owned_by(owner, Conversation), cursor, (Conversation.created_at, Conversation.id)
        )


async def count_items(store: Store, conversation_ids: Collection[str]) -> dict[str, int]:
    of_it = ConversationItem.conversation_id
    query = select(of_it, func.count()).where(of_it.in_(conversation_ids)).group_by(of_it)
    async with store.reading() as session:
        return {row[0]: row[1] for row in await session.execute(query)}


async def list_items(store: Store, owner: Owner, conversation_id: str, cursor: Cursor) -> Page[Item]:
    async with store.reading() as session:
        await find_owned(session, owner, Conversation, conversation_id)
        query = select(ConversationItem).where(ConversationItem.conversation_id == conversation_id)
        page = await read_page(session, query, cursor, (ConversationItem.position, ConversationItem.id))
    return Page([row.item for row in page.items], page.has_more)


async def read_history(store: Store, owner: Owner, conversation_id: str) -> list[str]:
    """The JSON of its items, oldest first. Raises `HistoryTooLongError`."""
    of_it = ConversationItem.conversation_id == conversation_id
    measure = select(func.count(), func.sum(size_of(ConversationItem.item))).where(of_it)
    async with store.reading() as session:
        await find_owned(session, owner, Conversation, conversation_id)
        check_measure(*(await session.execute(measure)).one())
        query = select(text_of(ConversationItem.item)).where(of_it).order_by(ConversationItem.position)
        return list(await session.scalars(query))


async def add_items(store: Store, owner: Owner, conversation_id: str, items: list[Item]) -> None:
    """Add items at its end. Raises `ConversationLockedError`, `ConflictError` for an id that it has,
    `HistoryTooLongError` past the items that a response may go on from."""
    now = int(store.now())
    async with storing(store, owner.organization_id, _bytes_of(items)) as session:
        conversation = await find_owned(session, owner, Conversation, conversation_id, to_change=True)
        if conversation.locked_by is not None and (conversation.locked_until or 0) > now:
            raise _locked(conversation_id)
        count = select(func.count()).where(ConversationItem.conversation_id == conversation_id)
        check_measure((await session.scalar(count) or 0) + len(items), None)
        conversation.locked_by = conversation.locked_until = None  # a hold that has run out: its answer knows them not
        await append_items(session, conversation, items, now)


async def find_item(store: Store, owner: Owner, conversation_id: str, item_id: str) -> Item:
    async with store.reading() as session:
        await find_owned(session, owner, Conversation, conversation_id)
        row = await _item(session, conversation_id, item_id)
        return row.item


async def find_items_by_id(store: Store, owner: Owner, item_ids: Collection[str]) -> dict[str, str]:
    """JSON of items of any of the owner's conversations, by their ids. Clients may choose ids: where several items have
    one, the newest is found. Raises `HistoryTooLongError`."""
    newest_first = (ConversationItem.created_at.desc(), Conversation.created_at.desc(), Conversation.id.desc())
    age = func.row_number().over(partition_by=ConversationItem.id, order_by=newest_first)
    aged = (
        select(ConversationItem.id, text_of(ConversationItem.item).label("text"), age.label("age"))
        .join(Conversation, Conversation.id == ConversationItem.conversation_id)
        .where(ConversationItem.id.in_(item_ids), is_owned_by(owner, Conversation))
        .subquery()
    )
    newest = aged.c.age == 1
    async with store.reading() as session:
        size = await session.scalar(select(func.sum(func.length(aged.c.text))).where(newest))
        check_measure(None, size)
        rows = await session.execute(select(aged.c.id, aged.c.text).where(newest))
        return {row.id: row.text for row in rows}


async def delete_item(store: Store, owner: Owner, conversation_id: str, item_id: str) -> Conversation:
    async with store.transaction() as session:
        conversation = await find_owned(session, owner, Conversation, conversation_id, to_change=True)
        row = await _item(session, conversation_id, item_id)
        await session.delete(row)
        conversation.changed_at = int(store.now())
        conversation.counted_bytes -= row.counted_bytes
    return conversation


async def lock_conversation(store: Store, owner: Owner, lock: Lock, seconds: int) -> None:
    """Take hold of a conversation for a response, or keep hold of it. Raises `ConversationLockedError`."""
    now = int(store.now())
    async with store.transaction() as session:
        conversation = await find_owned(session, owner, Conversation, lock.conversation_id, to_change=True)
        mine = conversation.locked_by in (None, lock.response_id)
        if not mine and (conversation.locked_until or 0) > now:
            raise _locked(lock.conversation_id)
        conversation.locked_by, conversation.locked_until = lock.response_id, now + seconds


async def renew_locks(store: Store, response_ids: list[str], seconds: int) -> None:
    until = int(store.now()) + seconds
    async with store.transaction() as session:
        await session.execute(
            update(Conversation).where(Conversation.locked_by.in_(response_ids)).values(locked_until=until)
        )


async def unlock_conversation(store: Store, lock: Lock) -> None:
    async with store.transaction() as session:
        await _unlock(session, lock)


async def finish_turn(session: AsyncSession, owner: Owner, lock: Lock, items: list[Item], now: int) -> None:
    """Add a response's items to its conversation and let go of it, within the caller's transaction. A deleted
    conversation is left alone. Raises `ConversationLockedError` where the hold ran out and the conversation has gone
    on."""
    try:
        conversation = await find_owned(session, owner, Conversation, lock.conversation_id, to_change=True)
    except NotFoundError:
        return
    if items and conversation.locked_by != lock.response_id:
        raise ConversationLockedError(f"The conversation {lock.conversation_id!r} has gone on without this response.")
    await append_items(session, conversation, items, now)
    await _unlock(session, lock)


async def append_items(session: AsyncSession, conversation: Conversation, items: list[Item], now: int) -> None:
    """Add items at the end of a conversation that is held for a change. Raises `ConflictError` for an id that it
    has."""
    ids = [item["id"] for item in items]
    known = select(func.count()).where(
        ConversationItem.conversation_id == conversation.id, ConversationItem.id.in_(ids)
    )
    if len(set(ids)) < len(ids) or await session.scalar(known):
        raise ConflictError("Two items would have the same 'id': leave it out, and each gets its own.")
    of_it = {"conversation_id": conversation.id, "created_at": now}
    sizes = [ITEM_BYTES + json_bytes(item) for item in items]
    rows = [
        {**of_it, "id": item["id"], "position": position, "item": item, "counted_bytes": size}
        for position, (item, size) in enumerate(zip(items, sizes, strict=True), start=conversation.num_items)
    ]
    if rows:
        await session.execute(insert(ConversationItem), rows)
    conversation.num_items += len(items)
    conversation.counted_bytes += sum(sizes)
    conversation.changed_at = now


def _bytes_of(items: list[Item]) -> int:
    return sum(ITEM_BYTES + json_bytes(item) for item in items)


async def _unlock(session: AsyncSession, lock: Lock) -> None:
    held = update(Conversation).where(
        Conversation.id == lock.conversation_id, Conversation.locked_by == lock.response_id
    )
    await session.execute(held.values(locked_by=None, locked_until=None))


async def _item(session: AsyncSession, conversation_id: str, item_id: str) -> ConversationItem:
    found = await session.get(ConversationItem, (item_id, conversation_id)) if is_id(item_id) else None
    if found is None:
        raise NotFoundError(f"The conversation has no item {item_id[:80]!r}.")
    return found


def _locked(conversation_id: str) -> ConversationLockedError:
    return ConversationLockedError(
        f"A response is being made in the conversation {conversation_id!r}. Try again when it has ended."
    )
