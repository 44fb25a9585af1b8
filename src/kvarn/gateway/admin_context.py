"""An administrator's place at the gateway: whose organisation it is, and how it is changed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession
from starlette.requests import Request

from kvarn.gateway.record import record_of
from kvarn.gateway.state import Gateway, gateway_of
from kvarn.identity.scopes import insufficient_permissions
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.owner import Principal, Role
from kvarn.store.repositories.tenants.audited_changes import Actor, AuditedChange, audited_change


@dataclass(frozen=True, slots=True)
class AdminContext:
    """Everything an administrator's request works with. An administrator sees and changes their own organisation."""

    gateway: Gateway
    principal: Principal

    @property
    def organization_id(self) -> str:
        """The organisation that is administered."""
        return self.principal.organization_id

    def reading(self) -> AbstractAsyncContextManager[AsyncSession]:
        """A session for queries."""
        return self.gateway.store.reading()

    @asynccontextmanager
    async def audited_change(self) -> AsyncGenerator[AuditedChange, None]:
        """An administrative act; once it is over, it holds for all requests of this gateway. One that failed before
        it could hold changes nothing for them: while the database is away, their keys are still believed, and after one
        of which nobody knows whether it holds, those of all whom it did not touch."""
        change: AuditedChange | None = None
        try:
            async with audited_change(self.gateway.store, self.actor) as change:
                yield change
        finally:
            if change is not None and change.may_hold:
                self.gateway.key_cache.renew(change.touched)

    @property
    def actor(self) -> Actor:
        """Who acts."""
        key_id = self.principal.key_id
        name = "anybody (open server)" if key_id is None else f"key {key_id}"
        return Actor(name, key_id, self.organization_id)


def admin_context(request: Request) -> AdminContext:
    """The admin of the administrator who asks.

    Raises:
        ApiError: 403, the key is no administrator's.
    """
    principal = record_of(request.scope).principal
    if principal.role is not Role.ADMIN:
        raise insufficient_permissions("role: admin")
    return AdminContext(gateway_of(request), principal)


def platform_admin_context(request: Request) -> AdminContext:
    """The admin of a platform administrator: one of the default organisation, who also looks after the others.

    Raises:
        ApiError: 403, the key is none of theirs.
    """
    admin = admin_context(request)
    if admin.organization_id != DEFAULT_ORGANIZATION:
        raise insufficient_permissions("role: platform administrator (admin of the default organization)")
    return admin
