"""Responses of `/v1/responses`, with what they were asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Select, Text, cast, func, literal, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.ids import is_id
from kvarn.store.models import StoredResponse
from kvarn.store.owner import Owner
from kvarn.store.repositories.conversations import MAX_HISTORY_BYTES, Item, Lock, finish_turn

MAX_CHAIN = 1000
"""Turns that a chain may have."""


class ChainTooLongError(Exception):
    """A chain of responses has more than `MAX_CHAIN` turns."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A response that has ended, as it is kept."""

    id: str
    body: dict[str, Any]
    input_items: list[Item]
    cuts: list[Any]
    previous_response_id: str | None = None
    lock: Lock | None = None
    """Of its conversation."""
    new_items: list[Item] = field(default_factory=list)
    """What it adds to its conversation."""


async def find_response(store: Store, owner: Owner, response_id: str) -> StoredResponse:
    """The response of that id.

    Raises:
        NotFoundError: The owner has none.
    """
    async with store.reading() as session:
        found = await session.scalar(_one(owner, response_id))
    if found is None:
        raise no_response(response_id)
    return found


async def read_chain(store: Store, owner: Owner, response_id: str) -> list[StoredResponse]:
    """A response and those it goes on from, oldest first. It begins behind the last one that has been deleted or has
    expired: what is gone is seen by nobody, the model included.

    Raises:
        NotFoundError: The owner has no response of that id.
        ChainTooLongError: See `MAX_CHAIN`, or more than `MAX_HISTORY_BYTES`.
    """
    last = _one(owner, response_id).with_only_columns(
        StoredResponse.id, StoredResponse.previous_response_id, literal(0).label("depth")
    )
    chain = last.cte("chain", recursive=True)
    earlier = aliased(StoredResponse)
    chain = chain.union_all(
        select(earlier.id, earlier.previous_response_id, chain.c.depth + 1).where(
            earlier.id == chain.c.previous_response_id,
            earlier.organization_id == owner.organization_id,
            earlier.project_id == owner.project_id,
            chain.c.depth < MAX_CHAIN,
        )
    )
    query = select(StoredResponse).join(chain, chain.c.id == StoredResponse.id).order_by(chain.c.depth.desc())
    written = func.length(cast(StoredResponse.input_items, Text)) + func.length(cast(StoredResponse.body, Text))
    size = select(func.sum(written)).join(chain, chain.c.id == StoredResponse.id)
    async with store.reading() as session:
        if (await session.scalar(size) or 0) > MAX_HISTORY_BYTES:
            raise ChainTooLongError
        found = list(await session.scalars(query))
    if not found:
        raise no_response(response_id)
    if len(found) > MAX_CHAIN:
        raise ChainTooLongError
    return found


async def delete_response(store: Store, owner: Owner, response_id: str) -> None:
    """Delete it. Raises as `find_response` does."""
    async with store.transaction() as session:
        await session.delete(await hold_response(session, owner, response_id))


async def keep_response(store: Store, owner: Owner, ended: Ended, *, stored: bool) -> None:
    """Keep a response that ran in the foreground, and its turn in its conversation: both or none.

    Args:
        store: Where.
        owner: Whose it is.
        ended: The response.
        stored: Whether the client wants it kept; its conversation goes on either way.
    """
    async with store.transaction() as session:
        if stored:
            session.add(
                StoredResponse(
                    id=ended.id,
                    organization_id=owner.organization_id,
                    project_id=owner.project_id,
                    created_at=ended.body["created_at"],
                    status=ended.body["status"],
                    background=False,
                    previous_response_id=ended.previous_response_id,
                    conversation_id=ended.lock.conversation_id if ended.lock else None,
                    input_items=ended.input_items,
                    body=ended.body,
                    request={},
                    cuts=ended.cuts,
                    attempts=1,
                )
            )
        if ended.lock is not None:
            await finish_turn(session, owner, ended.lock, ended.new_items, int(store.now()))


async def finish_background(store: Store, owner: Owner, ended: Ended, gateway_id: str) -> bool:
    """Write how a background response ended, and its turn in its conversation.

    Returns:
        False where it is no longer this gateway's to write: it was cancelled, deleted, or taken over.
    """
    async with store.transaction() as session:
        written = await session.execute(
            update(StoredResponse)
            .where(StoredResponse.id == ended.id, StoredResponse.leased_by == gateway_id)
            .values(status=ended.body["status"], body=ended.body, cuts=ended.cuts, leased_by=None, leased_until=None)
            .returning(StoredResponse.id)
        )
        if written.first() is None:
            return False
        if ended.lock is not None:
            await finish_turn(session, owner, ended.lock, ended.new_items, int(store.now()))
    return True


async def hold_response(session: AsyncSession, owner: Owner, response_id: str) -> StoredResponse:
    """The response, held for a change until the transaction ends. Raises as `find_response` does."""
    found = await session.scalar(_one(owner, response_id).with_for_update())
    if found is None:
        raise no_response(response_id)
    return found


def no_response(response_id: str) -> NotFoundError:
    """There is none of that id."""
    return NotFoundError(f"There is no response {response_id[:80]!r}.")


def _one(owner: Owner, response_id: str) -> Select[StoredResponse]:
    if not is_id(response_id):
        raise no_response(response_id)
    return select(StoredResponse).where(
        StoredResponse.id == response_id,
        StoredResponse.organization_id == owner.organization_id,
        StoredResponse.project_id == owner.project_id,
    )
