"""Calls of tools: noted before they run, ended with what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, update

from kvarn.store.engine import Store
from kvarn.store.ids import new_id
from kvarn.store.models import AuditEntry, StoredToolCall
from kvarn.store.owner import Principal

STARTED = "started"
AUDITED = "tool.called"
_MAX_ERROR = 1024


async def note_started(
    store: Store, principal: Principal, answer_id: str, request_id: str, kind: str, name: str, arguments: str
) -> str:
    """Note a call that is about to run; returns its id. `arguments`: their digest."""
    call_id = new_id("tcall_")
    async with store.transaction() as session:
        session.add(
            StoredToolCall(
                id=call_id,
                organization_id=principal.organization_id,
                project_id=principal.project_id,
                answer_id=answer_id,
                request_id=request_id,
                key_id=principal.key_id,
                type=kind,
                name=name,
                arguments=arguments,
                status=STARTED,
                created_at=int(store.now()),
            )
        )
    return call_id


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
        session.add(
            AuditEntry(
                id=new_id("audit_log-"),
                organization_id=principal.organization_id,
                effective_at=int(store.now()),
                type=AUDITED,
                actor_key_id=principal.key_id,
                actor="a request" if principal.key_id is None else f"key {principal.key_id}",
                actor_organization_id=principal.organization_id,
                actor_user_id=principal.user_id,
                object_id=call_id,
                project_id=principal.project_id,
                detail={"data": data},
            )
        )


async def calls_of(store: Store, principal: Principal, answer_id: str) -> Sequence[StoredToolCall]:
    """Calls that earlier runs of a response have made, in their order."""
    query = select(StoredToolCall).where(
        StoredToolCall.answer_id == answer_id,
        StoredToolCall.organization_id == principal.organization_id,
        StoredToolCall.project_id == principal.project_id,
    )
    async with store.reading() as session:
        found = await session.scalars(query.order_by(StoredToolCall.created_at, StoredToolCall.id))
        return found.all()


async def forget_results(store: Store, answer_id: str) -> None:
    """Drop the results of a response that has ended: its items have what its client may see of them."""
    async with store.transaction() as session:
        mine = StoredToolCall.answer_id == answer_id, StoredToolCall.result.is_not(None)
        await session.execute(update(StoredToolCall).where(*mine).values(result=None))
