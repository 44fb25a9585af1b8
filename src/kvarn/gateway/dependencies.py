"""FastAPI dependencies of routes: the gateway, the request's record and owner, the administrator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated, Concatenate, ParamSpec, TypeVar

from fastapi import Depends, Request
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.answers.record import RequestRecord
from kvarn.gateway.query import check_query
from kvarn.gateway.record import record_of
from kvarn.gateway.state import Gateway
from kvarn.identity.scopes import insufficient_permissions
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.owner import Owner, Principal, Role
from kvarn.store.repositories.tenants.audited_changes import Actor, AuditedChange

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

# All are `async`: FastAPI runs others in a thread.


async def current_gateway(request: Request) -> Gateway:
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


async def current_record(request: Request) -> RequestRecord:
    return record_of(request.scope)


async def current_principal(request: Request) -> Principal:
    return record_of(request.scope).principal


async def current_owner(request: Request) -> Owner:
    return record_of(request.scope).principal.owner


GatewayDep = Annotated[Gateway, Depends(current_gateway)]
RecordDep = Annotated[RequestRecord, Depends(current_record)]
PrincipalDep = Annotated[Principal, Depends(current_principal)]
OwnerDep = Annotated[Owner, Depends(current_owner)]


@dataclass(frozen=True, slots=True)
class AdminContext:
    """An administrator, who sees and changes their own organisation."""

    gateway: Gateway
    principal: Principal

    @property
    def organization_id(self) -> str:
        return self.principal.organization_id

    def reading(self) -> AbstractAsyncContextManager[AsyncSession]:
        return self.gateway.store.reading()

    def audited_change(self) -> AbstractAsyncContextManager[AuditedChange]:
        return self.gateway.control.key_cache.audited_change(self.actor)

    async def read(
        self, query: Callable[Concatenate[AsyncSession, str, P], Awaitable[ResultT]], *args: P.args, **kwargs: P.kwargs
    ) -> ResultT:
        async with self.reading() as session:
            return await query(session, self.organization_id, *args, **kwargs)

    async def change(
        self, act: Callable[Concatenate[AuditedChange, str, P], Awaitable[ResultT]], *args: P.args, **kwargs: P.kwargs
    ) -> ResultT:
        async with self.audited_change() as change:
            return await act(change, self.organization_id, *args, **kwargs)

    @property
    def actor(self) -> Actor:
        return actor_of(self.principal)


def actor_of(principal: Principal) -> Actor:
    """The one whom the audit log names for what a request does."""
    key_id, user_id = principal.key_id, principal.user_id
    if key_id is not None:
        name = f"key {key_id}"
    elif user_id is not None:
        name = f"user {user_id}"
    else:
        name = "anybody (open server)" if principal.role is Role.ADMIN else "a key of the configuration"
    return Actor(name, key_id, principal.organization_id, None if key_id is not None else user_id)


async def current_admin(gateway: GatewayDep, principal: PrincipalDep) -> AdminContext:
    """The administrator who sends the request. Raises `ApiError`: 403, the key is no administrator's."""
    if principal.role is not Role.ADMIN:
        raise insufficient_permissions("role: admin")
    return AdminContext(gateway, principal)


AdminDep = Annotated[AdminContext, Depends(current_admin)]


async def current_platform_admin(admin: AdminDep) -> AdminContext:
    """A platform administrator: one of the default organisation, who also looks after the others. Raises `ApiError`:
    403."""
    if admin.organization_id != DEFAULT_ORGANIZATION:
        raise insufficient_permissions("role: platform administrator (admin of the default organization)")
    return admin


PlatformAdminDep = Annotated[AdminContext, Depends(current_platform_admin)]

ADMINISTRATION = [Depends(current_admin), Depends(check_query)]  # dependencies of all routes of administrators
