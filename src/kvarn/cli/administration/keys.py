"""`kvarn keys`: create, list and revoke API keys."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvarn.cli.administration.database import Database, JsonOption, checked, database_command, seconds_of
from kvarn.cli.application import application
from kvarn.cli.output import show, show_secret
from kvarn.gateway.routes.organization.objects import project_key_object, scopes_of
from kvarn.store.errors import ConflictError
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.models import ApiKey
from kvarn.store.owner import Role
from kvarn.store.repositories.tenants import keys
from kvarn.store.repositories.tenants.organizations import default_project_id, get_organization
from kvarn.store.repositories.tenants.users import get_member
from kvarn.wire.openai.organization.requests import ProjectKeyCreate

app = application(help="Create, list and revoke API keys.", no_args_is_help=True)

TenantOption = Annotated[str, typer.Option(help="Organisation that owns the keys.")]

_COLUMNS = ("id", "name", "role", "project", "redacted_value", "scopes", "created_at", "expires_at", "last_used_at")
_HIDDEN = ("owner", "owner_project_access", "object")


@database_command(app, "create")
async def create(
    database: Database,
    name: Annotated[str, typer.Argument(help="Purpose of the key.")],
    role: Annotated[Role, typer.Option(help="service: uses models; member: sees usage too; admin.")] = Role.SERVICE,
    tenant: TenantOption = DEFAULT_ORGANIZATION,
    project: Annotated[str | None, typer.Option(help="Project.", show_default="the organisation's first")] = None,
    user: Annotated[
        str | None, typer.Option(help="Id of the project's user or service account that owns the key.")
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="Model that the key may use; repeatable.")] = None,
    endpoint: Annotated[list[str] | None, typer.Option(help="Path prefix that the key may use; repeatable.")] = None,
    expires_in: Annotated[
        str | None, typer.Option(help="Lifetime, such as 12h or 30d; up to a year.", show_default="never")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a key and print it. It cannot be shown again; standard output carries the key alone."""
    scopes = [f"models:{each}" for each in model or ()] + [f"endpoints:{each}" for each in endpoint or ()]
    lifetime_s = None if expires_in is None else seconds_of(expires_in)
    over_http = "service" if role is Role.ADMIN else str(role)
    checked(ProjectKeyCreate, name=name, role=over_http, user_id=user, scopes=scopes, expires_in_seconds=lifetime_s)
    async with database.audited_change() as change:
        if (await get_organization(change.session, tenant)).archived_at is not None:
            raise ConflictError(f"The organization {tenant!r} is archived.")
        project_id = project or await default_project_id(change.session, tenant)
        if user is not None:
            await get_member(change.session, tenant, project_id, user)
        wanted = keys.KeyRequest(name=name, role=role, user_id=user, scopes=scopes_of(scopes), lifetime_s=lifetime_s)
        key, value = await keys.add_key(change, tenant, project_id, wanted)
    made = _fields(key)
    database.warn_of_unknown_models(model or ())
    sentence = f"{made['id']} ({made['role']}) of {made['project']}; it is not shown again:"
    show_secret(made | {"value": value}, sentence, as_json=as_json)


@database_command(app, "list")
async def list_keys(
    database: Database,
    tenant: TenantOption = DEFAULT_ORGANIZATION,
    revoked: Annotated[bool, typer.Option("--all", help="Include revoked and expired keys.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List an organisation's keys, oldest first."""
    async with database.store.reading() as session:
        await get_organization(session, tenant)
        found = await keys.list_all_keys(session, tenant)
    rows = [_fields(key) for key in found if revoked or keys.is_in_force(key, database.store.now())]
    columns = (*_COLUMNS, "revoked_at") if revoked else _COLUMNS
    show(rows, columns, as_json=as_json, nothing="no keys: see `kvarn keys create`")


@database_command(app, "revoke")
async def revoke(
    database: Database,
    key: Annotated[str, typer.Argument(help="Id (key_…) of the key, or the key itself if it has leaked.")],
) -> None:
    """Revoke a key. Running servers notice within auth.refresh_s."""
    async with database.audited_change() as change:
        found = await keys.find_key(change.session, key)
        await keys.revoke_key(change, found.organization_id, found.id, admin=found.role == Role.ADMIN)
    typer.echo(f"revoked {found.id} ({found.name})")


def _fields(key: ApiKey) -> dict[str, Any]:
    fields = project_key_object(key) | {"project": key.project_id, "tenant": key.organization_id}
    fields |= {"user": key.user_id, "revoked_at": key.revoked_at}
    return {name: value for name, value in fields.items() if name not in _HIDDEN}
