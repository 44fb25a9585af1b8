"""`kvarn keys`: make, list and revoke API keys."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from kvarn.cli.administration import (
    ConfigOption,
    JsonOption,
    actor,
    checked,
    one_line_errors,
    seconds_of,
    show,
    with_store,
)
from kvarn.config.load import load_config
from kvarn.gateway.routes.organization.objects import project_key_object, scopes_of
from kvarn.store.engine import Store
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.keys import is_key
from kvarn.store.models import ApiKey
from kvarn.store.owner import Role
from kvarn.store.repositories.tenants import keys
from kvarn.store.repositories.tenants.audited_changes import audited_change
from kvarn.store.repositories.tenants.organizations import default_project_id, get_active_organization, get_organization
from kvarn.store.repositories.tenants.users import get_member
from kvarn.wire.openai.organization import ProjectKeyCreate

app = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True, add_completion=False)

TenantOption = Annotated[str, typer.Option(help="Organisation whose keys they are.")]

_COLUMNS = ("id", "name", "role", "project", "redacted_value", "scopes", "created_at", "expires_at", "last_used_at")


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="What it is for.")],
    role: Annotated[Role, typer.Option(help="service: uses models; member: sees usage too; admin.")] = Role.SERVICE,
    tenant: TenantOption = DEFAULT_ORGANIZATION,
    project: Annotated[str | None, typer.Option(help="Project.", show_default="the organisation's first")] = None,
    user: Annotated[
        str | None, typer.Option(help="Id of the project's user or service account whose key it is.")
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="Only this model; repeatable.")] = None,
    endpoint: Annotated[list[str] | None, typer.Option(help="Only paths that begin so; repeatable.")] = None,
    expires_in: Annotated[
        str | None, typer.Option(help="Such as 12h, 30d; a year at most.", show_default="never")
    ] = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Make a key and print it: nobody can ask for it again. Standard output carries the key alone."""
    scopes = [f"models:{each}" for each in model or ()]
    scopes += [f"endpoints:{each}" for each in endpoint or ()]

    async def make(store: Store) -> tuple[dict[str, Any], str]:
        lifetime_s = None if expires_in is None else seconds_of(expires_in)
        over_http = "service" if role is Role.ADMIN else str(role)
        checked(ProjectKeyCreate, name=name, role=over_http, user_id=user, scopes=scopes, expires_in_seconds=lifetime_s)
        async with audited_change(store, actor()) as change:
            await get_active_organization(change.session, tenant)
            project_id = project or await default_project_id(change.session, tenant)
            if user is not None:
                await get_member(change.session, tenant, project_id, user)
            asked = keys.KeyRequest(name=name, role=role, user_id=user, scopes=scopes_of(scopes), lifetime_s=lifetime_s)
            key, value = await keys.add_key(change, tenant, project_id, asked)
        return _told(key), value

    told, value = with_store(config, make)
    _warn_of_unknown(model or (), config)
    if as_json:
        show([told | {"value": value}], _COLUMNS, as_json=True, nothing="")
        return
    typer.echo(f"{told['id']} ({told['role']}) of {told['project']}; it is not shown again:", err=True)
    typer.echo(value)


@app.command("list")
def list_keys(
    tenant: TenantOption = DEFAULT_ORGANIZATION,
    revoked: Annotated[bool, typer.Option("--all", help="Revoked and expired ones too.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """List an organisation's keys, oldest first."""

    async def read(store: Store) -> list[ApiKey]:
        async with store.reading() as session:
            await get_organization(session, tenant)
            found = await keys.list_all_keys(session, tenant)
        return found if revoked else [key for key in found if keys.is_in_force(key, store.now())]

    columns = (*_COLUMNS, "revoked_at") if revoked else _COLUMNS
    show(map(_told, with_store(config, read)), columns, as_json=as_json, nothing="no keys: see `kvarn keys create`")


@app.command("revoke")
def revoke(
    key: Annotated[str, typer.Argument(help="Its id (key_…), or the key itself where it has leaked.")],
    config: ConfigOption = None,
) -> None:
    """Revoke a key. Running servers notice within auth.refresh_s."""

    async def end(store: Store) -> ApiKey:
        async with audited_change(store, actor()) as change:
            by = {"value": key} if is_key(key) else {"key_id": key}
            found = await keys.find_key(change.session, **by)
            return await keys.revoke_key(change, found.organization_id, found.id, admin=found.role == Role.ADMIN)

    gone = with_store(config, end)
    typer.echo(f"revoked {gone.id} ({gone.name})")


def _warn_of_unknown(models: Sequence[str], config: Path | None) -> None:
    """A server may serve other models than the configured ones, so a name that is not known is no error."""
    with one_line_errors():
        configured = load_config(config, warn=lambda _: None).models  # the store's configuration warns
    names = [model.name for model in configured]
    aliases = {alias: model.name for model in configured for alias in model.aliases}
    for name in models:
        if name in names:
            continue
        near = [aliases[name]] if name in aliases else get_close_matches(name, names, n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else f"configured: {', '.join(names)}"
        typer.echo(f"warning: no model is configured under the name {name!r} ({hint})", err=True)


def _told(key: ApiKey) -> dict[str, Any]:
    told = project_key_object(key, None) | {"project": key.project_id, "tenant": key.organization_id}
    told |= {"user": key.user_id, "revoked_at": key.revoked_at}
    return {name: value for name, value in told.items() if name not in ("owner", "owner_project_access", "object")}
