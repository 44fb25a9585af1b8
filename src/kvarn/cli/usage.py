"""`kvarn usage`: the ledger's sums, read from the database."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from kvarn.cli.administration import OptionError, one_line_errors, with_store
from kvarn.metering.prices import BILLIONTHS
from kvarn.store.engine import Store
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
TIMES = {"hour": HOUR_S, "day": DAY_S}
_THIRTY_DAYS, _EVER = "30d", "1970-01-01"
_AGO = re.compile(r"(\d+)([hd])")


def show_usage(
    config: Path | None,
    by: str,
    since: str | None,
    until: str | None,
    tenant: str | None,
    batch: str | None,
    as_json: bool,
    console: Console,
) -> None:
    """Print a table, or JSON lines.

    Args:
        config: YAML file.
        by: Names of `GROUPS` and at most one of `TIMES`, with commas between.
        since: Beginning: a moment (`2026-11-01`, `2026-11-01T10:00`, UTC) or how long ago (`24h`, `7d`); None: 30 days
            ago, or of one batch all there is.
        until: End, not included; None: now.
        tenant: Only this organisation.
        batch: Only the lines of this batch.
        as_json: One object a line, money as a decimal number in text.
        console: Where to print.

    Raises:
        typer.Exit: Something cannot be used, and has been told in a line.
    """
    with one_line_errors():
        groups, width, start, end = _options(by, since or (_THIRTY_DAYS if batch is None else _EVER), until)

    async def read(store: Store) -> list[UsageSum]:
        where = UsageFilter(organization_id=tenant, batch_ids=None if batch is None else (batch,))
        found = await usage_sums.sums(store, where, start=start, end=end, width=width, group_by=groups)
        if tenant is not None and not found:  # usage outlives its organisation
            async with store.reading() as session:
                await get_organization(session, tenant)
        if batch is not None and not found:
            await check_batch(store, batch)
        return found

    rows = [_row(each, by, width) for each in with_store(config, read)]
    if as_json:
        for row in rows:
            console.out(msgspec.json.encode(row).decode(), highlight=False)
    else:
        console.print(_table(rows, by) if rows else "no usage in this time")


def _options(by: str, since: str, until: str | None) -> tuple[list[str], int, int, int]:
    """Groups, their width in time, start and end."""
    groups, width = _groups(by)
    now = datetime.now(UTC)
    start = int(read_moment(since, now))
    end = int(now.timestamp() + 1 if until is None else read_moment(until, now))
    if start >= end:
        raise OptionError(f"--since {since} is not before {'now' if until is None else f'--until {until}'}")
    return groups, width, start, end


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


def _groups(by: str) -> tuple[list[str], int]:
    names = by.split(",")
    times = [name for name in names if name in TIMES]
    unknown = [name for name in names if name not in GROUPS and name not in TIMES]
    if unknown or len(times) > 1 or len(set(names)) < len(names):
        raise OptionError(f"--by {by}: name some of {', '.join(GROUPS)}, and at most one of {', '.join(TIMES)}")
    return [GROUPS[name] for name in names if name in GROUPS], TIMES[times[0]] if times else 0


def _row(found: UsageSum, by: str, width: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in by.split(","):
        if name in TIMES:
            moment = datetime.fromtimestamp(found.start, UTC)
            row[name] = moment.strftime("%Y-%m-%d" if width == DAY_S else "%Y-%m-%dT%H:00Z")
        else:
            row[name] = found.group[GROUPS[name]]
    return row | {
        "requests": found.requests,
        "input_tokens": found.input_tokens,
        "cached_tokens": found.cached_tokens,
        "output_tokens": found.output_tokens,
        "cost": money(found.cost),
        "currency": found.currency,
    }


def money(cost: int) -> str:
    """Billionths as a decimal number, exactly."""
    whole, rest = divmod(cost, BILLIONTHS)
    return f"{whole}.{rest:09d}".rstrip("0").removesuffix(".") if rest else str(whole)


def _table(rows: Sequence[dict[str, Any]], by: str) -> Table:
    table = Table(box=None, header_style="bold")
    names = by.split(",")
    for column in rows[0]:
        table.add_column(column.replace("_", " "), justify="left" if column in (*names, "currency") else "right")
    for row in rows:
        cells = [
            f"{value:,}" if isinstance(value, int) else "-" if value is None else str(value) for value in row.values()
        ]
        table.add_row(*cells)
    return table
