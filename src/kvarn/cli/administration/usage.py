"""`kvarn usage`: the ledger's sums, read from the database."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from kvarn.cli.administration.database import Database, JsonOption, OptionError, database_command
from kvarn.cli.application import application
from kvarn.cli.output import show
from kvarn.metering.prices import BILLIONTHS
from kvarn.store.ledger import DAY_S, HOUR_S, UsageFilter, UsageSum
from kvarn.store.repositories.batches.batches import check_batch
from kvarn.store.repositories.tenants.organizations import get_organization
from kvarn.store.repositories.usage import sums as usage_sums

GROUPS = {
    "tenant": "organization_id",
    "project": "project_id",
    "key": "api_key_id",
    "user": "user_id",
    "model": "model",
    "endpoint": "endpoint",
    "outcome": "outcome",
    "tier": "service_tier",
    "batch": "batch_id",
}
TIMES = {"hour": (HOUR_S, "%Y-%m-%dT%H:00Z"), "day": (DAY_S, "%Y-%m-%d")}
"""Width in seconds, and format of the beginning."""
_AGO = re.compile(r"(\d+)([hd])")

app = application()


@database_command(app, "usage")
async def usage(
    database: Database,
    by: Annotated[
        str,
        typer.Option(help="Groups: tenant, project, key, user, model, endpoint, outcome, tier, batch; hour or day."),
    ] = "tenant,model",
    since: Annotated[
        str | None,
        typer.Option(
            help="Start: 2026-11-01, 2026-11-01T10:00 (UTC), or 24h, 7d ago.", show_default="30d; all time of a --batch"
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="End (exclusive), in the forms of --since.", show_default="now")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Id of an organisation to select.")] = None,
    batch: Annotated[str | None, typer.Option(help="Id of a batch to select.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show usage and its cost, from the database's ledger."""
    names = by.split(",")
    times = [name for name in names if name in TIMES]
    if len(times) > 1 or len(set(names)) < len(names) or not {*names} <= GROUPS.keys() | TIMES.keys():
        raise OptionError(f"--by {by}: name some of {', '.join(GROUPS)}, and at most one of {', '.join(TIMES)}")
    since = since or ("30d" if batch is None else "1970-01-01")
    start, end = read_range(since, until)
    where = UsageFilter(organization_id=tenant, batch_ids=None if batch is None else (batch,))
    groups = [GROUPS[name] for name in names if name in GROUPS]
    width = TIMES[times[0]][0] if times else 0
    found = await usage_sums.sums(database.store, where, start=start, end=end, width=width, group_by=groups)
    if tenant is not None and not found:  # usage outlives its organisation
        async with database.store.reading() as session:
            await get_organization(session, tenant)
    if batch is not None and not found:
        await check_batch(database.store, batch)
    rows = [_row(each, names) for each in found]
    show(rows, tuple(rows[0]) if rows else (), as_json=as_json, nothing="no usage in this time")


def read_range(since: str, until: str | None) -> tuple[int, int]:
    """Start and end in seconds since 1970. Raises as `read_moment`, and where the one is not before the other."""
    now = datetime.now(UTC)
    start = int(read_moment(since, now))
    end = int(now.timestamp() + 1 if until is None else read_moment(until, now))
    if start >= end:
        raise OptionError(f"--since {since} is not before {'now' if until is None else f'--until {until}'}")
    return start, end


def read_moment(text: str, now: datetime) -> float:
    """A moment in seconds since 1970.

    Raises:
        OptionError: It is neither a moment nor a time ago.
    """
    ago = _AGO.fullmatch(text)
    try:
        if ago:
            hours = int(ago[1]) * (24 if ago[2] == "d" else 1)
            return (now - timedelta(hours=hours)).timestamp()
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise OptionError(f"{text!r}: write a moment as 2026-11-01 or 2026-11-01T10:00, or 24h, 7d") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def money(cost: int) -> str:
    """Billionths as a decimal number, exactly."""
    whole, rest = divmod(cost, BILLIONTHS)
    return f"{whole}.{rest:09d}".rstrip("0").removesuffix(".") if rest else str(whole)


def _row(found: UsageSum, names: list[str]) -> dict[str, Any]:
    start = datetime.fromtimestamp(found.start, UTC)
    groups = {name: start.strftime(TIMES[name][1]) if name in TIMES else found.group[GROUPS[name]] for name in names}
    return groups | {
        "requests": found.requests,
        "input_tokens": found.input_tokens,
        "cached_tokens": found.cached_tokens,
        "output_tokens": found.output_tokens,
        "cost": money(found.cost),
        "currency": found.currency,
    }
