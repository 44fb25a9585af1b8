"""Calls of tools: noted before they run, ended with what came of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, select, update

from kvarn.store.engine import Store
from kvarn.store.ids import new_id
from kvarn.store.models import StoredToolCall
from kvarn.store.owner import Owner, Principal
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import insert, is_owned_by, owned_by
from kvarn.store.repositories.tenants.audited_changes import Actor, AuditedChange

STARTED = "started"
AUDITED = "tool.called"
_MAX_ERROR = 1024


@dataclass(frozen=True, slots=True)
class NewCall:
    """A call that is about to run. `arguments`: their digest."""

    type: str
    name: str
    arguments: str
    approval_request_id: str | None = None

    def values(self, store: Store, principal: Principal, answer_id: str, request_id: str) -> dict[str, Any]:
        return {
            "id": new_id("tcall_"),
            "organization_id": principal.organization_id,
            "project_id": principal.project_id,
            "answer_id": answer_id,
            "request_id": request_id,
            "approval_request_id": self.approval_request_id,
            "key_id": principal.key_id,
            "type": self.type,
            "name": self.name,
            "arguments": self.arguments,
            "status": STARTED,
            "created_at": int(store.now()),
        }


async def note_started(store: Store, principal: Principal, answer_id: str, request_id: str, call: NewCall) -> str:
    """Note a call that is about to run; returns its id."""
    row = StoredToolCall(**call.values(store, principal, answer_id, request_id))
    async with store.transaction() as session:
        session.add(row)
    return row.id


async def claim_approved(
    store: Store,
    principal: Principal,
    answer_id: str,
    request_id: str,
    calls: Collection[NewCall],
    look_at: Callable[[NewCall, StoredToolCall | None], None],
) -> dict[str, str]:
    """Note approved calls that are about to run; returns their ids by their requests for approval. One that was noted
    before, by whichever request, is not noted again: `look_at` is called with its row (None: it is gone meanwhile).
    Where `look_at` raises, none is noted."""
    noted: dict[str, str] = {}
    async with store.transaction() as session:
        # In one order: two requests that approve the same calls do not wait for each other.
        for call in sorted(calls, key=lambda each: each.approval_request_id or ""):
            values = call.values(store, principal, answer_id, request_id)
            unique = [StoredToolCall.project_id, StoredToolCall.approval_request_id]
            new = insert(session, StoredToolCall).values(values).on_conflict_do_nothing(index_elements=unique)
            call_id = await session.scalar(new.returning(StoredToolCall.id))
            if call_id is not None:
                noted[str(call.approval_request_id)] = call_id
                continue
            mine = StoredToolCall.approval_request_id == call.approval_request_id
            earlier = select(StoredToolCall).where(mine, StoredToolCall.project_id == principal.project_id)
            look_at(call, await session.scalar(earlier))
    return noted


async def release_claims(store: Store, call_ids: Collection[str]) -> None:
    """Delete calls that were noted and have not begun."""
    async with store.transaction() as session:
        await session.execute(delete(StoredToolCall).where(StoredToolCall.id.in_(call_ids)))


async def note_ended(
    store: Store,
    principal: Principal,
    call_id: str,
    status: str,
    *,
    duration_ms: int,
    result_bytes: int = 0,
    error: str | None = None,
    result: dict[str, Any] | None = None,
) -> None:
    """Write what came of a call, and its entry in the audit log."""
    values: dict[str, Any] = {"status": status, "duration_ms": duration_ms, "result_bytes": result_bytes}
    values |= {"error": None if error is None else error[:_MAX_ERROR], "result": result}
    async with store.transaction() as session:
        ended = update(StoredToolCall).where(StoredToolCall.id == call_id).values(**values)
        found = (await session.execute(ended.returning(StoredToolCall.name, StoredToolCall.type))).first()
        if found is None:  # its organisation has been deleted
            return
        data = {"tool": found.name, "type": found.type, "status": status, "duration_ms": duration_ms}
        name = "a request" if principal.key_id is None else f"key {principal.key_id}"
        actor = Actor(name, principal.key_id, principal.organization_id, principal.user_id)
        change, own = AuditedChange(session, actor, int(store.now())), principal.owner
        change.record(AUDITED, own.organization_id, call_id, project_id=own.project_id, data=data)


async def list_calls(store: Store, owner: Owner, cursor: Cursor, status: str | None = None) -> Page[StoredToolCall]:
    """Calls of a project, newest first unless the cursor says otherwise."""
    query = owned_by(owner, StoredToolCall)
    if status is not None:
        query = query.where(StoredToolCall.status == status)
    async with store.reading() as session:
        return await read_page(session, query, cursor, (StoredToolCall.created_at, StoredToolCall.id))


async def used_approvals(store: Store, owner: Owner, request_ids: Collection[str]) -> set[str]:
    """Those of these requests for approval whose calls have begun."""
    used = StoredToolCall.approval_request_id
    query = owned_by(owner, StoredToolCall).with_only_columns(used).where(used.in_(request_ids))
    async with store.reading() as session:
        return {str(each) for each in await session.scalars(query)}


async def calls_of(store: Store, principal: Principal, answer_id: str) -> Sequence[StoredToolCall]:
    """Calls that earlier runs of a response have made without asking for approval, in their order."""
    query = select(StoredToolCall).where(
        StoredToolCall.answer_id == answer_id,
        StoredToolCall.approval_request_id.is_(None),
        is_owned_by(principal.owner, StoredToolCall),
    )
    async with store.reading() as session:
        found = await session.scalars(query.order_by(StoredToolCall.created_at, StoredToolCall.id))
        return found.all()


async def forget_results(store: Store, *answer_ids: str, approved: bool) -> None:
    """Drop the results of a response: of its `approved` calls, or of the others."""
    of_kind = (
        StoredToolCall.approval_request_id.is_not(None) if approved else StoredToolCall.approval_request_id.is_(None)
    )
    async with store.transaction() as session:
        mine = StoredToolCall.answer_id.in_(answer_ids), StoredToolCall.result.is_not(None), of_kind
        await session.execute(update(StoredToolCall).where(*mine).values(result=None))
