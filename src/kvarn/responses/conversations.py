"""Items on their way into a conversation."""

from __future__ import annotations

from collections.abc import Sequence

from kvarn.responses.items import find_kept_items, no_item
from kvarn.responses.responses_context import ResponsesContext
from kvarn.serving.record import RequestRecord
from kvarn.store.ids import new_id
from kvarn.store.repositories.conversations import conversations as stored
from kvarn.store.repositories.conversations.histories import MAX_HISTORY_ITEMS, HistoryTooLongError
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.responses.items import AnyItem, ItemReference, StoredItem, stored_item


async def add_items(
    serving: ResponsesContext, record: RequestRecord, conversation_id: str, given: Sequence[AnyItem]
) -> list[StoredItem]:
    """Add items at the end of a conversation; returns them as they are kept.

    Raises:
        ApiError: 404, a reference to what the owner has not; 400, the conversation would be too large to go on from.
        NotFoundError: The owner has no such conversation.
        ConflictError: A response is being made in it, or it has an item of one of the ids already.
        StorageFullError: The organisation would store more than it may.
    """
    items = await kept_items(serving, record, given)
    try:
        await stored.add_items(serving.store, record.principal.owner, conversation_id, items, serving.room.most)
    except HistoryTooLongError:
        message = (
            f"The conversation would hold more than {MAX_HISTORY_ITEMS} items: delete items of it, or begin a new one."
        )
        raise invalid_request(message, "items", "conversation_too_large") from None
    return items


async def kept_items(serving: ResponsesContext, record: RequestRecord, given: Sequence[AnyItem]) -> list[StoredItem]:
    """The items as they are kept; references are resolved.

    Raises:
        ApiError: 404, a reference to what the owner has not.
    """
    wanted = {item.id for item in given if isinstance(item, ItemReference)}
    found = await find_kept_items(serving, record, wanted, "items")
    items: list[StoredItem] = []
    for number, item in enumerate(given):
        if not isinstance(item, ItemReference):
            items.append(stored_item(item, new_id))
        elif item.id in found:
            items.append(found[item.id])
        else:
            raise no_item(item.id, f"items[{number}]")
    return items
