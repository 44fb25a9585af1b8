"""`kvarn tenants`: organisations, what they may, and their end."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from kvarn.cli.administration import (
    ConfigOption,
    JsonOption,
    OptionError,
    actor,
    checked,
    show,
    show_fields,
    with_store,
)
from kvarn.config.load import load_config
from kvarn.gateway.routes.organization.objects import project_object, storage_fields, tenant_object
from kvarn.store.engine import Store
from kvarn.store.owner import LimitRule, Role
from kvarn.store.repositories.pages import Cursor
from kvarn.store.repositories.retention.organization_deletion import delete_organization
from kvarn.store.repositories.stored_bytes import sum_of
from kvarn.store.repositories.tenants import organizations, rate_limits
from kvarn.store.repositories.tenants.audited_changes import audited_change
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key, list_all_keys
from kvarn.store.repositories.tenants.projects import list_projects
from kvarn.wire.openai.organization import RateLimitUpdate, TenantCreate, TenantUpdate

app = typer.Typer(help="Organisations, what they may, and their end.", no_args_is_help=True, add_completion=False)

TenantArgument = Annotated[str, typer.Argument(help="Id of the organisation.")]
Weight = Annotated[float | None, typer.Option(min=0.001, max=1000, help="Share of a saturated engine.")]
Priority = Annotated[int | None, typer.Option(min=0, max=100, help="Best tier: 0 is interactive, 10 is batch.")]
Retention = Annotated[int | None, typer.Option(min=0, help="Days its data is kept; 0: the server's setting.")]

_ALL = Cursor(limit=100_000, ascending=True)
_COLUMNS = ("id", "name", "status", "weight", "priority", "retention_days", "created_at")
_LIMITS = ("model", *rate_limits.LIMITS)


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Its name.")],
    weight: Weight = None,
    priority: Priority = None,
    retention_days: Retention = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Make an organisation with a project and an administrator's key, and print the key: nobody can ask for it again.
    Standard output carries the key alone."""

    async def make(store: Store) -> dict[str, Any]:
        settings = {"weight": weight, "priority": priority, "retention_days": retention_days or None}
        asked = checked(TenantCreate, name=name, **settings)
        given = asked.model_dump(exclude_none=True, exclude={"name"})
        async with audited_change(store, actor()) as change:
            organization, project = await organizations.add_organization(change, name, **given)
            await change.session.flush()
            first = KeyRequest(name="First admin key", role=Role.ADMIN)
            key, value = await add_key(change, organization.id, project.id, first)
        return tenant_object(organization) | {"project": project.id, "admin_key": key.id, "value": value}

    made = with_store(config, make)
    if as_json:
        show([made], _COLUMNS, as_json=True, nothing="")
        return
    typer.echo(f"{made['id']} with {made['project']} and this administrator's key, not shown again:", err=True)
    typer.echo(made["value"])


@app.command("list")
def list_tenants(as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """List all organisations, oldest first."""

    async def read(store: Store) -> list[dict[str, Any]]:
        async with store.reading() as session:
            return [{**tenant_object(each)} for each in (await organizations.list_organizations(session, _ALL)).items]

    show(with_store(config, read), _COLUMNS, as_json=as_json, nothing="no organisations")


@app.command("show")
def show_tenant(tenant: TenantArgument, as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """Show an organisation with what it stores, its projects and limits."""

    async def read(store: Store) -> dict[str, Any]:
        async with store.reading() as session:
            organization = await organizations.get_organization(session, tenant)
            stored = await sum_of(session, tenant)
            projects = (await list_projects(session, tenant, _ALL, archived=True)).items
            limits = await rate_limits.limits_of(session, [tenant])
            keys = [key for key in await list_all_keys(session, tenant) if key.revoked_at is None]
        most = load_config(config).retention.max_stored_bytes
        return tenant_object(organization) | {
            **storage_fields(stored, most),
            "keys": len(keys),
            "projects": [project_object(project) for project in projects],
            "limits": [_limit(rule) for rule in limits],
        }

    found = with_store(config, read)
    if as_json:
        show([found], _COLUMNS, as_json=True, nothing="")
        return
    show_fields({name: value for name, value in found.items() if name not in ("object", "projects", "limits")})
    typer.echo("\nprojects")
    show(found["projects"], ("id", "name", "status", "log_prompts", "created_at"), as_json=False, nothing="none")
    typer.echo("\nlimits of all its requests together")
    show(found["limits"], _LIMITS, as_json=False, nothing="none of its own: the server's (limits.…)")


@app.command("set")
def set_tenant(
    tenant: TenantArgument,
    name: Annotated[str | None, typer.Option(help="New name.")] = None,
    weight: Weight = None,
    priority: Priority = None,
    retention_days: Retention = None,
    archived: Annotated[
        bool | None, typer.Option("--archived/--active", help="Stop all its keys, or let them work again.")
    ] = None,
    model: Annotated[str, typer.Option(help="Model that the limits hold for.", show_default="each")] = "*",
    requests_per_minute: Annotated[int | None, typer.Option(min=0, help="0: no limit.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=0, help="0: no limit.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=0, help="Requests running at once. 0: no limit.")] = None,
    config: ConfigOption = None,
) -> None:
    """Set what an organisation may. What is left out stays. Running servers notice within auth.refresh_s."""
    settings = {"name": name, "weight": weight, "priority": priority, "archived": archived}
    changes: dict[str, Any] = {key: value for key, value in settings.items() if value is not None}
    if retention_days is not None:
        changes["retention_days"] = retention_days or None
    bounds = dict(zip(rate_limits.LIMITS, (requests_per_minute, tokens_per_minute, concurrency), strict=True))
    limits = {key: value or None for key, value in bounds.items() if value is not None}

    async def change(store: Store) -> None:
        if not changes and not limits:
            raise OptionError("nothing to set: see `kvarn tenants set --help`")
        checked(TenantUpdate, **changes)
        checked(
            RateLimitUpdate,
            max_requests_per_1_minute=requests_per_minute or None,
            max_tokens_per_1_minute=tokens_per_minute or None,
            max_concurrent_requests=concurrency or None,
        )
        if limits:
            _warn_of_unknown(model, config)
        async with audited_change(store, actor()) as change:
            await organizations.get_organization(change.session, tenant)
            if changes:
                await organizations.change_organization(change, tenant, changes)
            if limits:
                await rate_limits.set_limit(change, tenant, tenant, model, limits)

    with_store(config, change)
    typer.echo(f"changed {tenant}")


@app.command("delete")
def delete(
    tenant: TenantArgument,
    erase_usage: Annotated[bool, typer.Option(help="Its usage too, also when it is gone already.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: ConfigOption = None,
) -> None:
    """Delete an organisation and all it owns: projects, keys, conversations, files."""
    if not yes:
        typer.confirm(f"Delete {tenant} and all it owns? This cannot be undone.", abort=True)

    async def end(store: Store) -> None:
        await delete_organization(store, partial(audited_change, store, actor()), tenant, erase_usage=erase_usage)

    with_store(config, end)
    typer.echo(f"deleted {tenant}")


def _warn_of_unknown(model: str, config: Path | None) -> None:
    """No more than a warning: `kvarn serve --model` names models that the configuration does not."""
    known = [each.name for each in load_config(config).models]
    if model != "*" and model not in known:
        typer.echo(f"warning: the configuration has no model {model!r}, only {', '.join(known)}", err=True)


def _limit(rule: LimitRule) -> dict[str, Any]:
    return {name: getattr(rule, name) for name in _LIMITS}
