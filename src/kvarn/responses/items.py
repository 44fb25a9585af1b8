"""Items of responses and conversations: references to stored ones are resolved, new ones are stored."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvarn.answers.record import RequestRecord
from kvarn.responses.background_runs import ResponsesContext
from kvarn.responses.writer import response_of_item
from kvarn.store.ids import new_id
from kvarn.store.repositories.conversations import conversations, responses
from kvarn.store.repositories.conversations.histories import (
    MAX_HISTORY_BYTES,
    MAX_HISTORY_ITEMS,
    HistoryTooLongError,
    StoredTurn,
    check_measure,
    decode_item,
)
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.responses.items import AnyItem, ItemReference, StoredItem, stored_item


async def find_stored_items(
    serving: ResponsesContext, record: RequestRecord, wanted: Collection[str], param: str
) -> dict[str, StoredItem]:
    """Items of the owner's responses or conversations by their ids, as far as there are any. They count as if the
    request's body had brought them: an `ApiError` 400 for `param` where they are too much."""
    if not wanted:
        return {}
    store, owner = serving.store, record.principal.owner
    try:
        check_measure(len(wanted), None)
        holders = {holder for each in wanted if (holder := response_of_item(each)) is not None}
        turns = await responses.read_turns(store, owner, holders) if holders else []
        record.body_bytes += sum(turn.size for turn in turns)
        found = await serving.run(record, lambda: _items_among(turns, wanted))
        others = [each for each in wanted if each not in found]  # a conversation may still have them
        texts = await conversations.find_items_by_id(store, owner, others) if others else {}
    except HistoryTooLongError:
        message = (
            f"'{param}' refers to more than {MAX_HISTORY_ITEMS} items, or to responses and items of more than "
            f"{MAX_HISTORY_BYTES} bytes: send the items themselves."
        )
        raise invalid_request(message, param, "references_too_large") from None
    record.body_bytes += sum(map(len, texts.values()))
    return found | await serving.run(record, lambda: {name: decode_item(text) for name, text in texts.items()})


def item_not_found(wanted: str, where: str) -> ApiError:
    return ApiError(404, f"There is no item {wanted!r}.", code="item_not_found", param=f"{where}.id")


def _items_among(turns: list[StoredTurn], wanted: Collection[str]) -> dict[str, StoredItem]:
    return {
        item["id"]: item
        for turn in turns
        for item in turn.items()
        if item["id"] in wanted and response_of_item(item["id"]) == turn.id
    }


async def add_items(
    serving: ResponsesContext, record: RequestRecord, conversation_id: str, given: Sequence[AnyItem]
) -> list[StoredItem]:
    """Add items at the end of a conversation; returns them as they are stored."""
    items = await resolve_items(serving, record, given)
    try:
        await conversations.add_items(serving.store, record.principal.owner, conversation_id, items)
    except HistoryTooLongError:
        message = (
            f"The conversation would hold more than {MAX_HISTORY_ITEMS} items: delete items of it, or begin a new one."
        )
        raise invalid_request(message, "items", "conversation_too_large") from None
    return items


async def resolve_items(serving: ResponsesContext, record: RequestRecord, given: Sequence[AnyItem]) -> list[StoredItem]:
    """The items as they are stored; references are resolved. Raises `ApiError` 404."""
    wanted = {item.id for item in given if isinstance(item, ItemReference)}
    found = await find_stored_items(serving, record, wanted, "items")
    items: list[StoredItem] = []
    for number, item in enumerate(given):
        if not isinstance(item, ItemReference):
            items.append(stored_item(item, new_id))
        elif item.id in found:
            items.append(found[item.id])
        else:
            raise item_not_found(item.id, f"items[{number}]")
    return items
