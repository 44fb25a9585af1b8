"""What a response is made from: the items of earlier turns, and those of this one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvarn.gateway.response_writer import item_id, response_of_item
from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.owner import Owner
from kvarn.store.repositories import conversations, responses
from kvarn.store.repositories.background_responses import RUNNING
from kvarn.store.repositories.conversations import ConversationLockedError, Lock
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.response_items import ItemReference, StoredItem, stored_item, user_message
from kvarn.wire.openai.responses import ContextFields


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn."""

    earlier: list[StoredItem]
    """Of the turns before, oldest first."""
    items: list[StoredItem]
    """What this one adds."""
    lock: Lock | None = None
    """Of the conversation it belongs to."""

    @property
    def context(self) -> list[StoredItem]:
        """All that the model may be shown, oldest first."""
        return self.earlier + self.items


async def open_turn(store: Store, owner: Owner, asked: ContextFields, response_id: str, lock_s: int) -> Turn:
    """Read what a response goes on from, and lock its conversation for `lock_s` seconds.

    Raises:
        ApiError: 404 for what the owner has not, 409 while another response is made in the conversation, 400 for an
            input that does not go together.
    """
    if asked.conversation_id is None:
        earlier = await read_earlier(store, owner, asked)
        return Turn(earlier, await _new_items(store, owner, asked, earlier, response_id))
    lock = Lock(asked.conversation_id, response_id)
    earlier = await _take_lock(store, owner, lock, lock_s)
    try:
        items = await _new_items(store, owner, asked, earlier, response_id)
    except BaseException:
        await conversations.unlock_conversation(store, lock)
        raise
    return Turn(earlier, items, lock)


async def look_at_turn(store: Store, owner: Owner, asked: ContextFields) -> Turn:
    """As `open_turn`, for one that will not be made: nothing is locked."""
    earlier = await read_earlier(store, owner, asked)
    return Turn(earlier, await _new_items(store, owner, asked, earlier, "resp_"))


async def open_turn_again(store: Store, owner: Owner, asked: ContextFields, known: Turn, lock_s: int) -> Turn:
    """A turn whose own items are known already, with what is earlier by now. Raises as `open_turn` does."""
    if known.lock is None:
        return replace(known, earlier=await read_earlier(store, owner, asked))
    return replace(known, earlier=await _take_lock(store, owner, known.lock, lock_s))


async def _take_lock(store: Store, owner: Owner, lock: Lock, lock_s: int) -> list[StoredItem]:
    try:
        return await conversations.lock_conversation(store, owner, lock, lock_s)
    except ConversationLockedError as error:
        raise ApiError(409, str(error), code="conversation_locked", param="conversation") from None
    except NotFoundError as error:
        raise ApiError(404, str(error), code="conversation_not_found", param="conversation") from None


async def read_earlier(store: Store, owner: Owner, asked: ContextFields) -> list[StoredItem]:
    """The items of the chain or the conversation that a request goes on from.

    Raises:
        ApiError: 404 for what the owner has not, 409 for a response that has not ended, 400 for a chain too long.
    """
    try:
        if asked.conversation_id is not None:
            return await conversations.all_items(store, owner, asked.conversation_id)
        if asked.previous_response_id is None:
            return []
        chain = await responses.read_chain(store, owner, asked.previous_response_id)
    except responses.ChainTooLongError:
        message = (
            f"The chain of responses has more than {responses.MAX_CHAIN} turns or too many bytes: begin a new one."
        )
        raise invalid_request(message, "previous_response_id", "chain_too_long") from None
    except NotFoundError as error:
        name = "conversation" if asked.previous_response_id is None else "previous_response_id"
        code = "conversation_not_found" if name == "conversation" else "previous_response_not_found"
        raise ApiError(404, str(error), code=code, param=name) from None
    if chain[-1].status in RUNNING:
        message = f"The response {chain[-1].id!r} has not ended: wait for it, or cancel it."
        raise ApiError(409, message, code="response_in_progress", param="previous_response_id")
    return [item for turn in chain for item in (*turn.input_items, *turn.body["output"])]


async def _new_items(
    store: Store, owner: Owner, asked: ContextFields, earlier: list[StoredItem], response_id: str
) -> list[StoredItem]:
    """The input as it is kept; references are resolved."""
    if asked.input is None:
        return []
    if isinstance(asked.input, str):
        return [user_message(asked.input, item_id("msg_", response_id, 0))]
    known = {item["id"] for item in earlier}
    calls = {item["call_id"] for item in earlier if item["type"] == "function_call"}
    items: list[StoredItem] = []
    for number, given in enumerate(asked.input):
        where = f"input[{number}]"
        if isinstance(given, ItemReference):
            if given.id in known:
                continue  # the model is shown it already
            item = await find_kept_item(store, owner, given.id, where)
        else:
            item = stored_item(given, _ids(response_id, len(items)))
        if item["id"] in known:
            raise invalid_request(
                f"'{where}.id' is {item['id']!r}, as an item before it has: leave it out.", f"{where}.id"
            )
        if item["type"] == "function_call":
            calls.add(item["call_id"])
        elif item["type"] == "function_call_output" and item["call_id"] not in calls:
            message = f"No call has the 'call_id' {item['call_id']!r} of '{where}': its function_call must come before."
            raise invalid_request(message, f"{where}.call_id")
        known.add(item["id"])
        items.append(item)
    return items


def _ids(response_id: str, number: int) -> Callable[[str], str]:
    return lambda prefix: item_id(prefix, response_id, number)


async def find_kept_item(store: Store, owner: Owner, wanted: str, where: str) -> StoredItem:
    """An item of the owner's responses or conversations, by its id.

    Raises:
        ApiError: 404; `where` is the place of the reference in the request.
    """
    holder = response_of_item(wanted)
    if holder is not None:
        try:
            row = await responses.find_response(store, owner, holder)
        except NotFoundError:
            pass  # a conversation may still have it
        else:
            for item in (*row.input_items, *row.body["output"]):
                if item["id"] == wanted:
                    return dict(item)
    found = await conversations.find_item_anywhere(store, owner, wanted)
    if found is None:
        raise ApiError(404, f"There is no item {wanted!r}.", code="item_not_found", param=f"{where}.id")
    return found
