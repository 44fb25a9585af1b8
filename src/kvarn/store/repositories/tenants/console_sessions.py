"""Sessions of the console: begun and ended in the audit log, and swept once they are over."""

from __future__ import annotations

from sqlalchemy import delete, select

from kvarn.store.engine import Store
from kvarn.store.keys import digest_of, new_session_token
from kvarn.store.models import ConsoleSession
from kvarn.store.owner import Principal
from kvarn.store.repositories.tenants.audited_changes import AuditedChange

_MAX_OF_ONE = 50
"""Sessions of one key or user: with one more, the oldest ends."""


async def add_session(
    change: AuditedChange, principal: Principal, lifetime_s: float, *, method: str, bound_to: str = ""
) -> tuple[ConsoleSession, str]:
    """A session that acts for a principal, with its token, which is known at this moment only. `bound_to`: digest of
    the key of the configuration without which it is over."""
    token = new_session_token()
    session = ConsoleSession(
        lookup=token.lookup,
        digest=digest_of(token.value + bound_to),
        organization_id=principal.organization_id,
        key_id=principal.key_id,
        user_id=None if principal.key_id is not None else principal.user_id,
        created_at=change.now,
        expires_at=change.now + int(lifetime_s),
    )
    change.session.add(session)
    await change.session.flush()
    await _end_oldest(change, session)
    change.record("login.succeeded", principal.organization_id, _holder(session), method=method)
    return session, token.value


async def end_session(change: AuditedChange, lookup: str) -> None:
    """End a session at all gateways; one that is over already is left so."""
    session = await change.session.get(ConsoleSession, lookup)
    if session is None:
        return
    await change.session.delete(session)
    change.record("logout.succeeded", session.organization_id, _holder(session))


async def delete_old_sessions(store: Store) -> None:
    async with store.transaction() as session:
        await session.execute(delete(ConsoleSession).where(ConsoleSession.expires_at <= int(store.now())))


async def _end_oldest(change: AuditedChange, newest: ConsoleSession) -> None:
    same = (
        select(ConsoleSession.lookup)
        .where(
            ConsoleSession.organization_id == newest.organization_id,
            ConsoleSession.key_id.is_not_distinct_from(newest.key_id),
            ConsoleSession.user_id.is_not_distinct_from(newest.user_id),
            ConsoleSession.lookup != newest.lookup,
        )
        .order_by(ConsoleSession.created_at.desc(), ConsoleSession.lookup)
        .offset(_MAX_OF_ONE - 1)
    )
    ended = list(await change.session.scalars(same))
    if ended:
        await change.session.execute(delete(ConsoleSession).where(ConsoleSession.lookup.in_(ended)))
        change.changed.add(newest.organization_id)


def _holder(session: ConsoleSession) -> str:
    return session.key_id or session.user_id or "configured"
