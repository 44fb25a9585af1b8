"""`/console/api/session`: who looks at the console."""

from __future__ import annotations

from fastapi import Request
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.gateway.console.paths import API, SESSION
from kvarn.gateway.console.router import console_router
from kvarn.gateway.dependencies import GatewayDep
from kvarn.identity.authenticator import Authenticator
from kvarn.identity.open_server import auth_mode
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.owner import Principal, Role
from kvarn.store.repositories.pages import Cursor
from kvarn.store.repositories.tenants.keys import find_key
from kvarn.store.repositories.tenants.organizations import get_organization
from kvarn.store.repositories.tenants.projects import get_project, list_projects
from kvarn.store.repositories.tenants.users import get_user
from kvarn.wire.openai.errors import ApiError

router = console_router()

_MAX_PROJECTS = 200


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


@router.get(SESSION.removeprefix(API))
async def get_session(request: Request, gateway: GatewayDep) -> SessionObject:
    """Whoever asks hears who they are; nobody is refused, but by an open server that is asked from elsewhere."""
    authenticator: Authenticator = request.app.state.authenticator
    is_open = auth_mode(gateway.config) == "open"
    try:
        principal = await authenticator.principal(request.scope)
    except ApiError as error:
        if error.status != 401:
            raise
        return SessionObject(signed_in=False, open=is_open, features=Features())
    async with gateway.store.reading() as session:
        return await _describe(session, principal, is_open)


async def _describe(session: AsyncSession, principal: Principal, is_open: bool) -> SessionObject:
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
