"""`kvarn tenants`: create, list, show, change and delete organisations."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvarn.cli.administration.database import Database, JsonOption, OptionError, checked, database_command
from kvarn.cli.application import application
from kvarn.cli.output import show, show_fields, show_secret
from kvarn.gateway.routes.organization.objects import project_object, tenant_object
from kvarn.store.owner import Role
from kvarn.store.repositories.organization_deletion import delete_organization
from kvarn.store.repositories.pages import Cursor
from kvarn.store.repositories.tenants import organizations, rate_limits
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key, list_all_keys
from kvarn.store.repositories.tenants.projects import list_projects
from kvarn.wire.openai.organization.requests import RateLimitUpdate, TenantCreate, TenantUpdate

app = application(help="Manage organisations.", no_args_is_help=True)

TenantArgument = Annotated[str, typer.Argument(help="Id of the organisation.")]
Weight = Annotated[float | None, typer.Option(min=0.001, max=1000, help="Weight of its share of a saturated engine.")]
Priority = Annotated[
    int | None, typer.Option(min=0, max=100, help="Best priority its requests may have: 0 is interactive, 10 is batch.")
]
Retention = Annotated[int | None, typer.Option(min=0, help="Days that its data is kept; 0: the server's setting.")]

_ALL = Cursor(limit=100_000, ascending=True)
_COLUMNS = ("id", "name", "status", "weight", "priority", "retention_days", "created_at")
_LIMITS = ("model", *rate_limits.LIMITS)


@database_command(app, "create")
async def create(
    database: Database,
    name: Annotated[str, typer.Argument(help="Name of the organisation.")],
    weight: Weight = None,
    priority: Priority = None,
    retention_days: Retention = None,
    as_json: JsonOption = False,
) -> None:
    """Create an organisation with a project and an administrator's key, and print the key. It cannot be shown again;
    standard output carries the key alone."""
    settings = {"weight": weight, "priority": priority, "retention_days": retention_days or None}
    request = checked(TenantCreate, name=name, **settings)
    async with database.audited_change() as change:
        given = request.model_dump(exclude_none=True, exclude={"name"})
        organization, project = await organizations.add_organization(change, name, **given)
        await change.session.flush()
        first = KeyRequest(name="First admin key", role=Role.ADMIN)
        key, value = await add_key(change, organization.id, project.id, first)
    made = tenant_object(organization) | {"project": project.id, "admin_key": key.id, "value": value}
    sentence = f"{made['id']} with {made['project']} and this administrator's key, not shown again:"
    show_secret(made, sentence, as_json=as_json)


@database_command(app, "list")
async def list_tenants(database: Database, as_json: JsonOption = False) -> None:
    """List all organisations, oldest first."""
    async with database.store.reading() as session:
        rows = [{**tenant_object(each)} for each in (await organizations.list_organizations(session, _ALL)).items]
    show(rows, _COLUMNS, as_json=as_json, nothing="no organisations")


@database_command(app, "show")
async def show_tenant(database: Database, tenant: TenantArgument, as_json: JsonOption = False) -> None:
    """Show an organisation with what it stores, its projects and limits."""
    async with database.store.reading() as session:
        organization = await organizations.get_organization(session, tenant)
        projects = (await list_projects(session, tenant, _ALL, archived=True)).items
        limits = await rate_limits.limit_rules_of(session, [tenant])
        keys = [key for key in await list_all_keys(session, tenant) if key.revoked_at is None]
    own: dict[str, Any] = {
        **tenant_object(organization, max_stored_bytes=database.config.retention.max_stored_bytes),
        "keys": len(keys),
    }
    shown_projects = [{**project_object(project)} for project in projects]
    shown_limits = [{name: getattr(rule, name) for name in _LIMITS} for rule in limits]
    if as_json:
        show([own | {"projects": shown_projects, "limits": shown_limits}], as_json=True)
        return
    show_fields({name: value for name, value in own.items() if name != "object"})
    typer.echo("\nprojects")
    show(shown_projects, ("id", "name", "status", "log_prompts", "created_at"), as_json=False, nothing="none")
    typer.echo("\nlimits of all its requests together")
    show(shown_limits, _LIMITS, as_json=False, nothing="none of its own: the server's (limits.…)")


@database_command(app, "set")
async def set_tenant(
    database: Database,
    tenant: TenantArgument,
    name: Annotated[str | None, typer.Option(help="New name.")] = None,
    weight: Weight = None,
    priority: Priority = None,
    retention_days: Retention = None,
    archived: Annotated[
        bool | None, typer.Option("--archived/--active", help="Disable all its keys, or enable them again.")
    ] = None,
    model: Annotated[str, typer.Option(help="Model that the limits apply to.", show_default="each")] = "*",
    requests_per_minute: Annotated[int | None, typer.Option(min=0, help="Requests a minute; 0: no limit.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=0, help="Tokens a minute; 0: no limit.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=0, help="Requests running at once; 0: no limit.")] = None,
) -> None:
    """Change the rights and limits of an organisation. Options that are left out keep their value. Running servers
    apply the change within auth.refresh_s."""
    settings = {"name": name, "weight": weight, "priority": priority, "archived": archived}
    changes: dict[str, Any] = {key: value for key, value in settings.items() if value is not None}
    if retention_days is not None:
        changes["retention_days"] = retention_days or None
    given = dict(zip(rate_limits.LIMITS, (requests_per_minute, tokens_per_minute, concurrency), strict=True))
    limits = {key: value or None for key, value in given.items() if value is not None}
    if not changes and not limits:
        raise OptionError("nothing to set: see `kvarn tenants set --help`")
    checked(TenantUpdate, **changes)
    checked(
        RateLimitUpdate,
        max_requests_per_1_minute=requests_per_minute or None,
        max_tokens_per_1_minute=tokens_per_minute or None,
        max_concurrent_requests=concurrency or None,
    )
    if limits and model != "*":
        database.warn_of_unknown_models([model])
    async with database.audited_change() as change:
        await organizations.get_organization(change.session, tenant)
        if changes:
            await organizations.change_organization(change, tenant, changes)
        if limits:
            await rate_limits.set_limit(change, tenant, tenant, model, limits)
    typer.echo(f"changed {tenant}")


@database_command(app, "delete")
async def delete(
    database: Database,
    tenant: TenantArgument,
    erase_usage: Annotated[
        bool, typer.Option(help="Delete its usage too, even if the organisation is already deleted.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete an organisation and all it owns: projects, keys, conversations, files."""
    if not yes:
        typer.confirm(f"Delete {tenant} and all it owns? This cannot be undone.", abort=True)
    await delete_organization(database.store, database.audited_change, tenant, erase_usage=erase_usage)
    typer.echo(f"deleted {tenant}")
