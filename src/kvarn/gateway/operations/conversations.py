"""Items on their way into a conversation."""

from __future__ import annotations

from collections.abc import Sequence

from kvarn.gateway.operations.response_context import find_kept_item
from kvarn.store.engine import Store
from kvarn.store.ids import new_id
from kvarn.store.owner import Owner
from kvarn.wire.openai.response_items import AnyItem, ItemReference, StoredItem, stored_item


async def kept_items(store: Store, owner: Owner, given: Sequence[AnyItem]) -> list[StoredItem]:
    """The items as they are kept; references are resolved.

    Raises:
        ApiError: 404, a reference to what the owner has not.
    """
    items: list[StoredItem] = []
    for number, item in enumerate(given):
        if isinstance(item, ItemReference):
            items.append(await find_kept_item(store, owner, item.id, f"items[{number}]"))
        else:
            items.append(stored_item(item, new_id))
    return items
