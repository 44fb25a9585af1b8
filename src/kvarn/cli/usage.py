"""`kvarn usage`: the ledger's sums, read from the database."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from kvarn.config.load import load_config
from kvarn.metering.prices import BILLIONTHS
from kvarn.store.engine import Store
from kvarn.store.ledger import DAY_S, HOUR_S, UsageFilter, UsageSum
from kvarn.store.migrate import check
from kvarn.store.repositories import usage_sums

GROUPS = {
    "tenant": "organization_id",
    "project": "project_id",
    "key": "api_key_id",
    "user": "user_id",
    "model": "model",
    "endpoint": "endpoint",
    "outcome": "outcome",
    "tier": "service_tier",
}
TIMES = {"hour": HOUR_S, "day": DAY_S}
_AGO = re.compile(r"(\d+)([hd])")


class UsageOptionsError(ValueError):
    """An option cannot be used; the message says how to write it."""


def show_usage(
    config: Path | None, by: str, since: str, until: str | None, tenant: str | None, as_json: bool, console: Console
) -> None:
    """Print a table, or JSON lines.

    Args:
        config: YAML file.
        by: Names of `GROUPS` and at most one of `TIMES`, with commas between.
        since: Beginning: a moment (`2026-11-01`, `2026-11-01T10:00`, UTC) or how long ago (`24h`, `7d`).
        until: End, not included; None: now.
        tenant: Only this organisation.
        as_json: One object a line, money as a decimal number in text.
        console: Where to print.

    Raises:
        UsageOptionsError: `by`, `since` or `until` cannot be read.
        ConfigError: The configuration cannot be used.
        StoreError: The database cannot.
    """
    groups, width = _groups(by)
    now = datetime.now(UTC)
    start = read_moment(since, now)
    end = now.timestamp() + 1 if until is None else read_moment(until, now)
    store = Store.open(load_config(config))
    found = asyncio.run(_read(store, groups, width, int(start), int(end), tenant))
    rows = [_row(each, by, width) for each in found]
    if as_json:
        for row in rows:
            console.out(msgspec.json.encode(row).decode(), highlight=False)
    else:
        console.print(_table(rows, by) if rows else "no usage in this time")


def read_moment(text: str, now: datetime) -> float:
    """A moment in seconds since 1970.

    Raises:
        UsageOptionsError: It is neither a moment nor a time ago.
    """
    ago = _AGO.fullmatch(text)
    if ago:
        hours = int(ago[1]) * (24 if ago[2] == "d" else 1)
        return (now - timedelta(hours=hours)).timestamp()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageOptionsError(f"{text!r}: write a moment as 2026-11-01 or 2026-11-01T10:00, or 24h, 7d") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _groups(by: str) -> tuple[list[str], int]:
    names = by.split(",")
    times = [name for name in names if name in TIMES]
    unknown = [name for name in names if name not in GROUPS and name not in TIMES]
    if unknown or len(times) > 1 or len(set(names)) < len(names):
        raise UsageOptionsError(f"--by {by}: name some of {', '.join(GROUPS)}, and at most one of {', '.join(TIMES)}")
    return [GROUPS[name] for name in names if name in GROUPS], TIMES[times[0]] if times else 0


async def _read(
    store: Store, groups: Sequence[str], width: int, start: int, end: int, tenant: str | None
) -> list[UsageSum]:
    try:
        await check(store)
        where = UsageFilter(organization_id=tenant)
        return await usage_sums.sums(store, where, start=start, end=end, width=width, group_by=groups)
    finally:
        await store.close()


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
