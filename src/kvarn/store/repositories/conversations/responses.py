"""Responses of `/v1/responses`, with what they were asked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, literal, select, update
from sqlalchemy.orm import aliased

from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.ids import is_id
from kvarn.store.models import StoredResponse
from kvarn.store.owner import Owner
from kvarn.store.repositories.conversations.conversations import Lock, finish_turn
from kvarn.store.repositories.conversations.histories import (
    HistoryTooLongError,
    Item,
    StoredTurn,
    check_measure,
    size_of,
    text_of,
)
from kvarn.store.repositories.queries import is_owned_by
from kvarn.store.repositories.stored_bytes import ROW_BYTES, json_bytes

MAX_CHAIN = 1000  # turns that a chain may have


_MEASURE = select(
    func.count(),
    func.sum(func.json_array_length(StoredResponse.input_items)),
    func.sum(size_of(StoredResponse.input_items) + size_of(StoredResponse.body)),
).select_from(StoredResponse)
"""Numbers of responses, of input items (outputs are counted when they are read), of characters of JSON."""

_KEPT_TURN = select(
    StoredResponse.id, StoredResponse.status, text_of(StoredResponse.input_items), text_of(StoredResponse.body)
)


@dataclass(frozen=True, slots=True)
class Ended:
    """A response that has ended, as it is kept."""

    id: str
    body: dict[str, Any]
    input_items: list[Item]
    cuts: list[Any]
    previous_response_id: str | None = None
    lock: Lock | None = None
    new_items: list[Item] = field(default_factory=list)  # items that it adds to its conversation


async def read_chain(store: Store, owner: Owner, response_id: str) -> list[StoredTurn]:
    """A response and those it goes on from, oldest first. It begins behind the last one that has been deleted or has
    expired: what is gone is shown neither to clients nor to the model. Raises `HistoryTooLongError`."""
    missing = NotFoundError(f"There is no response {response_id[:80]!r}.")
    if not is_id(response_id):
        raise missing
    last = select(StoredResponse.id, StoredResponse.previous_response_id, literal(0).label("depth"))
    last = last.where(StoredResponse.id == response_id, is_owned_by(owner, StoredResponse))
    chain = last.cte("chain", recursive=True)
    earlier = aliased(StoredResponse)
    chain = chain.union_all(
        select(earlier.id, earlier.previous_response_id, chain.c.depth + 1).where(
            earlier.id == chain.c.previous_response_id,
            is_owned_by(owner, earlier),
            chain.c.depth < MAX_CHAIN,
        )
    )
    in_it = chain.c.id == StoredResponse.id
    async with store.reading() as session:
        turns, items, size = (await session.execute(_MEASURE.join(chain, in_it))).one()
        if not turns:
            raise missing
        if turns > MAX_CHAIN:
            raise HistoryTooLongError
        check_measure(items, size)
        rows = await session.execute(_KEPT_TURN.join(chain, in_it).order_by(chain.c.depth.desc()))
        return [StoredTurn(*row) for row in rows]


async def read_turns(store: Store, owner: Owner, response_ids: Collection[str]) -> list[StoredTurn]:
    """The owner's responses among these, in no order. Raises `HistoryTooLongError`."""
    ids = StoredResponse.id.in_([each for each in response_ids if is_id(each)])
    among = ids & is_owned_by(owner, StoredResponse)
    async with store.reading() as session:
        _, _, size = (await session.execute(_MEASURE.where(among))).one()
        check_measure(None, size)
        return [StoredTurn(*row) for row in await session.execute(_KEPT_TURN.where(among))]


async def keep_response(store: Store, owner: Owner, ended: Ended, *, stored: bool) -> None:
    """Keep a response that ran in the foreground, where its client wants it `stored`, and its turn in its conversation:
    both or none. It has been made: it is kept however much its organisation has stored."""
    async with store.transaction() as session:
        if stored:
            conversation_id = ended.lock.conversation_id if ended.lock else None
            counted = response_bytes(ended.body, ended.input_items, ended.cuts)
            row = new_response(owner, ended.body, ended.input_items, conversation_id, counted)
            row.previous_response_id, row.cuts = ended.previous_response_id, ended.cuts
            session.add(row)
        if ended.lock is not None:
            await finish_turn(session, owner, ended.lock, ended.new_items, int(store.now()))


async def finish_background(store: Store, owner: Owner, ended: Ended, gateway_id: str) -> bool:
    """Write how a background response ended, and its turn in its conversation; False where it is no longer this
    gateway's to write: it was cancelled, deleted, or taken over."""
    mine = StoredResponse.id == ended.id, StoredResponse.leased_by == gateway_id
    known = select(text_of(StoredResponse.request)).where(*mine).with_for_update()
    content = response_bytes(ended.body, ended.input_items, ended.cuts)
    async with store.transaction() as session:
        request = await session.scalar(known)
        if request is None:
            return False
        written = update(StoredResponse).where(*mine)
        await session.execute(
            written.values(
                status=ended.body["status"],
                body=ended.body,
                cuts=ended.cuts,
                leased_by=None,
                leased_until=None,
                counted_bytes=content + len(request.encode()),
            )
        )
        if ended.lock is not None:
            await finish_turn(session, owner, ended.lock, ended.new_items, int(store.now()))
    return True


def response_bytes(*content: Any) -> int:
    return ROW_BYTES + json_bytes(*content)


def new_response(
    owner: Owner, body: dict[str, Any], input_items: list[Item], conversation_id: str | None, counted: int
) -> StoredResponse:
    return StoredResponse(
        id=body["id"],
        organization_id=owner.organization_id,
        project_id=owner.project_id,
        created_at=body["created_at"],
        status=body["status"],
        previous_response_id=body.get("previous_response_id"),
        conversation_id=conversation_id,
        input_items=input_items,
        body=body,
        request={},
        cuts=[],
        attempts=1,
        counted_bytes=counted,
    )
