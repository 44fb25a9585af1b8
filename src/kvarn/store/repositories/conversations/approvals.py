"""Requests for approval in stored responses that nobody has answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, select

from kvarn.store.engine import Store
from kvarn.store.models import StoredResponse
from kvarn.store.owner import Owner
from kvarn.store.repositories.conversations.histories import text_of
from kvarn.store.repositories.queries import is_owned_by
from kvarn.store.repositories.tool_calls import used_approvals

NEWEST = 1000
"""Responses of a project that are looked at: what is older waits no more."""
_SHOWN = 50
"""Responses with open requests that are told at most."""


@dataclass(frozen=True, slots=True)
class OpenApproval:
    response: StoredResponse
    request: dict[str, Any]
    """The item `mcp_approval_request`."""


async def open_approvals(store: Store, owner: Owner) -> list[OpenApproval]:
    """Requests for approval among the newest responses of a project that no later response answers, and whose calls
    have not begun; newest first."""
    newest = (
        select(StoredResponse.id)
        .where(is_owned_by(owner, StoredResponse))
        .order_by(StoredResponse.created_at.desc(), StoredResponse.id.desc())
        .limit(NEWEST)
        .subquery()
    )
    among = StoredResponse.id.in_(select(newest.c.id))
    asking = select(StoredResponse).where(among, _mentions(StoredResponse.body, "mcp_approval_request"))
    asking = asking.order_by(StoredResponse.created_at.desc(), StoredResponse.id.desc()).limit(_SHOWN)
    replies = select(StoredResponse.input_items)
    replies = replies.where(among, _mentions(StoredResponse.input_items, "mcp_approval_response"))
    async with store.reading() as session:
        responses = (await session.scalars(asking)).all()
        sent = (await session.scalars(replies)).all() if responses else []
    answered = {item["approval_request_id"] for items in sent for item in _of_type(items, "mcp_approval_response")}
    found = [
        OpenApproval(response, item)
        for response in responses
        for item in _of_type(response.body.get("output") or (), "mcp_approval_request")
        if item["id"] not in answered
    ]
    used = await used_approvals(store, owner, [each.request["id"] for each in found]) if found else set()
    return [each for each in found if each.request["id"] not in used]


def _mentions(column: Any, name: str) -> ColumnElement[bool]:
    return text_of(column).contains(f'"{name}"')


def _of_type(items: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [item for item in items if item.get("type") == kind]
