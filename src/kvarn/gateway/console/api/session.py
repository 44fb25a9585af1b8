"""`/console/api/session`: who looks at the console; signing in with an API key, and out.

These paths need no key, so the middleware has not looked at the request: who asks is found out here.
"""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import Request
from msgspec import Struct
from pydantic import Field
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.responses import Response

from kvarn.gateway.answer import json_response
from kvarn.gateway.console.browser import clear_session, client_address, set_session
from kvarn.gateway.console.paths import API, OIDC_START, SESSION
from kvarn.gateway.console.router import console_router
from kvarn.gateway.dependencies import GatewayDep, actor_of
from kvarn.gateway.state import Gateway
from kvarn.identity.authenticator import Authenticator, not_authenticated, presented_key
from kvarn.identity.open_server import auth_mode
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.keys import is_key
from kvarn.store.owner import Principal, Role
from kvarn.store.repositories.pages import Cursor
from kvarn.store.repositories.tenants.keys import find_key
from kvarn.store.repositories.tenants.organizations import get_organization
from kvarn.store.repositories.tenants.projects import get_project, list_projects
from kvarn.store.repositories.tenants.users import get_user
from kvarn.wire.openai.common import RequestModel
from kvarn.wire.openai.errors import ApiError

router = console_router()

_MAX_PROJECTS = 200
_PATH = SESSION.removeprefix(API)

_log = logging.getLogger("kvarn.gateway")


class NamedObject(Struct):
    id: str
    name: str


class OidcFeature(Struct):
    """A provider that people sign in with. `path`: where they begin, relative to the server's root."""

    name: str
    path: str


class Features(Struct):
    oidc: OidcFeature | None = None


class SessionObject(Struct):
    """The viewer. All but `signed_in`, `open` and `features` are null where nobody is signed in on a server that asks
    for keys."""

    signed_in: bool
    open: bool
    """Whether the server asks for no keys."""
    features: Features
    name: str | None = None
    role: str | None = None
    is_platform_admin: bool = False
    organization: NamedObject | None = None
    project: NamedObject | None = None
    """The project that what they ask of models belongs to."""
    projects: list[NamedObject] | None = None
    """Projects that they see, the oldest 200 at most."""
    expires: float | None = None
    """UNIX seconds; null without a session of the console."""


class SignIn(RequestModel):
    key: str = Field(min_length=1, max_length=512, repr=False)


@router.get(_PATH)
async def get_session(request: Request, gateway: GatewayDep) -> SessionObject:
    """Whoever asks hears who they are; nobody is refused, but by an open server that is asked from elsewhere."""
    authenticator: Authenticator = request.app.state.authenticator
    is_open = auth_mode(gateway.config) == "open"
    try:
        principal = await authenticator.principal(request.scope)
    except ApiError as error:
        if error.status != 401:
            raise
        return SessionObject(signed_in=False, open=is_open, features=_features(gateway))
    session = None
    if presented_key(request.scope["headers"]) is None:
        session = await gateway.control.sessions.current(request.scope["headers"])
    return await _describe(gateway, principal, expires=session.expires_at if session else None)


@router.post(_PATH)
async def sign_in(request: Request, gateway: GatewayDep, body: SignIn) -> Annotated[Response, SessionObject]:
    """Sign in with an API key. The session's token is new, whatever the browser came with.

    What has the form of a generated key is looked at however many attempts have failed: nobody guesses its 256 random
    bits, and those who share an address with somebody who tries are not shut out.

    Raises:
        ApiError: 401, no valid key; 403, another site's page asks; 429, too many guesses have failed.
    """
    sessions, scope = gateway.control.sessions, request.scope
    sessions.cookies.check_origin(scope)
    address, is_guess = client_address(request), not is_key(body.key)
    if is_guess:
        sessions.failed.check(address)
    principal = await sessions.keys.bearer_of(body.key)
    if principal is None:
        if is_guess:
            sessions.failed.note(address)
        _log.warning("a sign-in to the console failed", extra={"address": address})
        raise not_authenticated(body.key)
    session = await sessions.begin(
        principal,
        actor_of(principal),
        "api_key",
        replaced=await sessions.current(scope["headers"]),
        bound_to=sessions.keys.configured_digest(body.key),
    )
    response = json_response(await _describe(gateway, principal, expires=session.expires_at))
    set_session(response, sessions.cookies, session, int(gateway.store.now()))
    return response


@router.delete(_PATH)
async def sign_out(request: Request, gateway: GatewayDep) -> Annotated[Response, SessionObject]:
    """End the browser's session; one that is over is as good. Raises `ApiError` 403, where another page asks."""
    sessions, scope = gateway.control.sessions, request.scope
    session = await sessions.current(scope["headers"])
    if session is not None:
        sessions.cookies.check_change(scope, session.token)
        await sessions.end(session, actor_of(session.principal))
    is_open = auth_mode(gateway.config) == "open"
    response = json_response(SessionObject(signed_in=False, open=is_open, features=_features(gateway)))
    clear_session(response, sessions.cookies)
    return response


def _features(gateway: Gateway) -> Features:
    oidc = gateway.control.oidc
    return Features(oidc=None if oidc is None else OidcFeature(oidc.name, OIDC_START.removeprefix("/")))


async def _describe(gateway: Gateway, principal: Principal, *, expires: float | None) -> SessionObject:
    async with gateway.store.reading() as session:
        shown = await _read(session, principal, is_open=auth_mode(gateway.config) == "open")
    shown.features = _features(gateway)
    shown.expires = expires
    shown.signed_in = shown.signed_in or expires is not None
    return shown


async def _read(session: AsyncSession, principal: Principal, *, is_open: bool) -> SessionObject:
    organization = await get_organization(session, principal.organization_id)
    project = await get_project(session, organization.id, principal.project_id)
    projects = [project]
    if principal.role is Role.ADMIN:
        projects = (await list_projects(session, organization.id, Cursor(limit=_MAX_PROJECTS, ascending=True))).items
    return SessionObject(
        signed_in=not is_open or principal.key_id is not None or principal.user_id is not None,
        open=is_open,
        features=Features(),
        name=await _name(session, principal),
        role=str(principal.role),
        is_platform_admin=principal.role is Role.ADMIN and organization.id == DEFAULT_ORGANIZATION,
        organization=NamedObject(organization.id, organization.name),
        project=NamedObject(project.id, project.name),
        projects=[NamedObject(each.id, each.name) for each in projects],
    )


async def _name(session: AsyncSession, principal: Principal) -> str:
    """The person's name, else the key's."""
    if principal.key_id is not None:
        key = await find_key(session, principal.key_id)
        return key.user.name if key.user is not None else key.name
    if principal.user_id is not None:
        return (await get_user(session, principal.organization_id, principal.user_id)).name
    return "anybody on this machine" if principal.role is Role.ADMIN else "a key of the configuration"
