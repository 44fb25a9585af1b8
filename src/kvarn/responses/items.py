"""Items that have been kept before, by their ids: what an `item_reference` stands for."""

from __future__ import annotations

from collections.abc import Collection

from kvarn.responses.responses_context import ResponsesContext
from kvarn.responses.writer import response_of_item
from kvarn.serving.record import RequestRecord
from kvarn.store.repositories.conversations import conversations, responses
from kvarn.store.repositories.conversations.histories import (
    MAX_HISTORY_BYTES,
    MAX_HISTORY_ITEMS,
    HistoryTooLongError,
    KeptTurn,
    check_measure,
    decode_item,
)
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.responses.items import StoredItem


async def find_kept_items(
    serving: ResponsesContext, record: RequestRecord, wanted: Collection[str], param: str
) -> dict[str, StoredItem]:
    """Items of the owner's responses or conversations by their ids, as far as there are any. What is read counts as if
    the request's body had brought it.

    Args:
        serving: Where they are kept.
        record: Who asks.
        wanted: Ids.
        param: The field of the request that refers to them.

    Raises:
        ApiError: 400, it is too much to be read.
    """
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
        texts = await conversations.find_items_anywhere(store, owner, others) if others else {}
    except HistoryTooLongError:
        message = (
            f"'{param}' refers to more than {MAX_HISTORY_ITEMS} items, or to responses and items of more than "
            f"{MAX_HISTORY_BYTES} bytes: send the items themselves."
        )
        raise invalid_request(message, param, "references_too_large") from None
    record.body_bytes += sum(map(len, texts.values()))
    return found | await serving.run(record, lambda: {name: decode_item(text) for name, text in texts.items()})


def no_item(wanted: str, where: str) -> ApiError:
    """The 404 for a reference at `where` to what the owner has not."""
    return ApiError(404, f"There is no item {wanted!r}.", code="item_not_found", param=f"{where}.id")


def _items_among(turns: list[KeptTurn], wanted: Collection[str]) -> dict[str, StoredItem]:
    return {
        item["id"]: item
        for turn in turns
        for item in turn.items()
        if item["id"] in wanted and response_of_item(item["id"]) == turn.id
    }
