"""Input of a response: the items of earlier turns, and those of this one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from kvarn.answers.record import RequestRecord
from kvarn.responses.background_runs import ResponsesContext
from kvarn.responses.items import find_stored_items, item_not_found
from kvarn.responses.writer import item_id
from kvarn.store.errors import NotFoundError
from kvarn.store.repositories.conversations import conversations, responses
from kvarn.store.repositories.conversations.background_responses import RUNNING
from kvarn.store.repositories.conversations.conversations import ConversationLockedError, Lock
from kvarn.store.repositories.conversations.histories import (
    MAX_HISTORY_BYTES,
    MAX_HISTORY_ITEMS,
    HistoryTooLongError,
    check_items,
    decode_item,
)
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.responses.items import (
    CALLS,
    OUTPUTS,
    AnyItem,
    ItemReference,
    StoredItem,
    stored_item,
    user_message,
)
from kvarn.wire.openai.responses.request import ContextFields


@dataclass(frozen=True, slots=True)
class ResponseInput:
    """Input items of a response, those of earlier turns included, and its lock on the conversation."""

    earlier: list[StoredItem]
    """Items of the turns before, oldest first."""
    items: list[StoredItem]
    lock: Lock | None = None
    chain: str = ""  # id of the response with which the chain began that it goes on from

    @property
    def context(self) -> list[StoredItem]:
        return self.earlier + self.items


async def open_input(
    serving: ResponsesContext, record: RequestRecord, request: ContextFields, response_id: str
) -> ResponseInput:
    """Read what a response goes on from, and lock its conversation. It counts as if the request's body had brought it:
    as much is done with the prompt. Raises `ApiError`: 404, 409 while another response is made in the conversation, 400
    for an input that does not go together and for too much to go on from."""
    if request.conversation_id is None:
        return await read_input(serving, record, request, response_id)
    lock = Lock(request.conversation_id, response_id)
    async with _locked(serving, record, lock):
        return replace(await read_input(serving, record, request, response_id), lock=lock)


async def read_input(
    serving: ResponsesContext, record: RequestRecord, request: ContextFields, response_id: str = "resp_"
) -> ResponseInput:
    earlier, chain = await _read_earlier(serving, record, request)
    items = await _new_items(serving, record, request.input, earlier, response_id)
    return _bounded(request, ResponseInput(earlier, items, chain=chain))


async def reopen_input(
    serving: ResponsesContext, record: RequestRecord, request: ContextFields, known: ResponseInput
) -> ResponseInput:
    """An input whose own items are known already, with what is earlier by now. Raises as `open_input` does."""
    if known.lock is None:
        earlier, chain = await _read_earlier(serving, record, request)
        return _bounded(request, replace(known, earlier=earlier, chain=chain))
    async with _locked(serving, record, known.lock):
        earlier, chain = await _read_earlier(serving, record, request)
        return _bounded(request, replace(known, earlier=earlier, chain=chain))


@asynccontextmanager
async def _locked(serving: ResponsesContext, record: RequestRecord, lock: Lock) -> AsyncGenerator[None]:
    """Lock a conversation, for longer than the block lasts unless it raises. Its items are read under the lock, not in
    the transaction that takes it: others may write meanwhile."""
    runs = serving.responses
    try:
        await conversations.lock_conversation(serving.store, record.principal.owner, lock, runs.config.lease_s)
    except ConversationLockedError as error:
        raise ApiError(409, str(error), code="conversation_locked", param="conversation") from None
    except NotFoundError as error:
        raise ApiError(404, str(error), code="conversation_not_found", param="conversation") from None
    runs.locked.add(lock.response_id)
    try:
        yield
    except BaseException:
        await runs.unlock(lock)
        raise


async def _read_earlier(
    serving: ResponsesContext, record: RequestRecord, request: ContextFields
) -> tuple[list[StoredItem], str]:
    """The items of the chain or the conversation that a request goes on from; id of the chain's first response."""
    store, owner = serving.store, record.principal.owner
    try:
        if request.conversation_id is not None:
            texts = await conversations.read_history(store, owner, request.conversation_id)
            record.body_bytes += sum(map(len, texts))
            return await serving.run(record, lambda: [decode_item(text) for text in texts]), ""
        if request.previous_response_id is None:
            return [], ""
        chain = await responses.read_chain(store, owner, request.previous_response_id)
    except HistoryTooLongError:
        raise _too_long(request) from None
    except NotFoundError as error:
        name = "conversation" if request.previous_response_id is None else "previous_response_id"
        code = "conversation_not_found" if name == "conversation" else "previous_response_not_found"
        raise ApiError(404, str(error), code=code, param=name) from None
    if chain[-1].status in RUNNING:
        message = f"The response {chain[-1].id!r} has not ended: wait for it, or cancel it."
        raise ApiError(409, message, code="response_in_progress", param="previous_response_id")
    record.body_bytes += sum(turn.size for turn in chain)
    return await serving.run(record, lambda: [item for turn in chain for item in turn.items()]), chain[0].id


def _bounded(request: ContextFields, response_input: ResponseInput) -> ResponseInput:
    if response_input.earlier:  # an input alone has the bounds of a body
        try:
            check_items(response_input.context)
        except HistoryTooLongError:
            raise _too_long(request) from None
    return response_input


def _too_long(request: ContextFields) -> ApiError:
    bound = f"{MAX_HISTORY_ITEMS} items or {MAX_HISTORY_BYTES} bytes"
    if request.conversation_id is not None:
        message = f"The conversation holds more than {bound}: delete items of it, or begin a new one."
        return invalid_request(message, "conversation", "conversation_too_large")
    message = f"The chain of responses has more than {responses.MAX_CHAIN} turns, {bound}: begin a new one."
    return invalid_request(message, "previous_response_id", "chain_too_long")


async def _new_items(
    serving: ResponsesContext,
    record: RequestRecord,
    given: str | Sequence[AnyItem] | None,
    earlier: list[StoredItem],
    response_id: str,
) -> list[StoredItem]:
    if given is None:
        return []
    if isinstance(given, str):
        return [user_message(given, item_id("msg_", response_id, 0))]
    known = {item["id"] for item in earlier}
    wanted = {item.id for item in given if isinstance(item, ItemReference)} - known
    found = await find_stored_items(serving, record, wanted, "input")
    return await serving.run(record, lambda: _resolve_items(given, earlier, found, response_id))


def _resolve_items(
    given: Sequence[AnyItem], earlier: list[StoredItem], found: Mapping[str, StoredItem], response_id: str
) -> list[StoredItem]:
    known = {item["id"] for item in earlier}
    calls = {item["call_id"] for item in earlier if item["type"] in CALLS}
    approvals = {item["id"] for item in earlier if item["type"] == "mcp_approval_request"}
    items: list[StoredItem] = []
    for number, each in enumerate(given):
        where = f"input[{number}]"
        if isinstance(each, ItemReference):
            if each.id in known:
                continue  # the model is shown it already
            if each.id not in found:
                raise item_not_found(each.id, where)
            item = found[each.id]
        else:
            item = stored_item(each, partial(item_id, response_id=response_id, number=len(items)))
        if item["id"] in known:
            raise invalid_request(
                f"'{where}.id' is {item['id']!r}, as an item before it has: leave it out.", f"{where}.id"
            )
        if item["type"] in CALLS:
            calls.add(item["call_id"])
        elif item["type"] in OUTPUTS and item["call_id"] not in calls:
            message = f"No call has the 'call_id' {item['call_id']!r} of '{where}': its call must come before."
            raise invalid_request(message, f"{where}.call_id")
        elif item["type"] == "mcp_approval_request":
            approvals.add(item["id"])
        elif item["type"] == "mcp_approval_response" and item["approval_request_id"] not in approvals:
            asked, field = item["approval_request_id"], f"{where}.approval_request_id"
            message = f"'{field}' is {asked!r}: no request for approval before it has that id."
            raise ApiError(400, message, code="approval_request_not_found", param=field)
        known.add(item["id"])
        items.append(item)
    return items
