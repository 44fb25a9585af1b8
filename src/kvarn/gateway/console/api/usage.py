"""`/console/api/usage`: tokens and cost of what the viewer may see, over time and by whom, largest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Literal

from msgspec import Struct
from pydantic import Field
from starlette.responses import Response

from kvarn.gateway.console.csv_lines import csv_headers, csv_lines
from kvarn.gateway.console.router import console_router
from kvarn.gateway.console.viewer import ConsoleViewer, Viewer
from kvarn.gateway.dependencies import GatewayDep
from kvarn.gateway.query import CHECKED, QueryModel, Text
from kvarn.gateway.state import Gateway
from kvarn.identity.scopes import check_sees_usage
from kvarn.metering.prices import BILLIONTHS
from kvarn.store.ledger import DAY_S, HOUR_S, UsageFilter, UsageSum
from kvarn.store.repositories.tenants.keys import labels_of_keys
from kvarn.store.repositories.tenants.projects import find_projects
from kvarn.store.repositories.tenants.users import names_of_users
from kvarn.wire.openai.errors import invalid_request

router = console_router()

_MAX_ROWS = 200
_MAX_LINES = 3
"""Rows that have a line of their own in the chart; a fourth is of all others."""
_SECONDS = {"1h": HOUR_S, "6h": 6 * HOUR_S, "24h": DAY_S, "7d": 7 * DAY_S, "30d": 30 * DAY_S}
_WIDTH = {"1h": 300, "6h": HOUR_S, "24h": HOUR_S, "7d": DAY_S, "30d": DAY_S}

MAX_EXPORTED = 10_000
"""Rows of an export at most."""
_EXPORTED = (
    *("day", "id", "name", "detail", "requests"),
    *("input_tokens", "cached_tokens", "output_tokens", "cost", "currency"),
)

Group = Literal["organization", "project", "model", "key", "user"]
_COLUMNS: dict[Group, str] = {
    "organization": "organization_id",
    "project": "project_id",
    "model": "model",
    "key": "api_key_id",
    "user": "user_id",
}


class UsageQuery(QueryModel):
    range: Literal["1h", "6h", "24h", "7d", "30d"] = "24h"
    group: Group = "project"
    organization: Text | None = Field(None, description="Only this organisation.")
    project: Text | None = None
    model: Text | None = None
    key: Text | None = None
    user: Text | None = None

    def filter_for(self, viewer: Viewer) -> UsageFilter:
        """Limits the question to what the viewer may see; none where that is nothing of it."""
        where = UsageFilter(
            organization_id=viewer.organization_id or self.organization,
            project_ids=_only(self.project),
            user_ids=_only(self.user),
            key_ids=_only(self.key),
            models=_only(self.model),
        )
        if viewer.organization_id is not None and self.organization not in (None, viewer.organization_id):
            return replace(where, project_ids=())
        if viewer.project_id is not None:
            own = (viewer.project_id,) if self.project in (None, viewer.project_id) else ()
            where = replace(where, project_ids=own)
        return where


class UsageRow(Struct, frozen=True, kw_only=True):
    """Use in the range. `id` is null for use of no key or no user; `name` is the id of what has been deleted."""

    id: str | None
    name: str
    detail: str
    """The organisation of a project, the shortened value of a key; else empty."""
    currency: str
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: float


class UsageLine(Struct, frozen=True):
    """A line of the chart: a value for each of `at`."""

    name: str
    tokens: list[int]
    cost: list[float]


class UsageBucket(Struct, frozen=True, kw_only=True):
    at: int
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: float


class UsageView(Struct, frozen=True, kw_only=True):
    start: int
    end: int
    width_s: int
    group: str
    currency: str
    """Currency `metering.currency`: sums in others have rows of their own and are in no line and no bucket."""
    rows: list[UsageRow]
    """By cost, then by tokens, largest first."""
    more_rows: int
    """Rows that are not listed."""
    buckets: list[UsageBucket]
    """All of the range by time, oldest first; empty ones, too. Their beginnings are those of the lines' values."""
    lines: list[UsageLine]
    names: dict[str, str]
    """Names of the ids that the answer is filtered by."""


@router.get("/usage", dependencies=CHECKED)
async def get_usage(gateway: GatewayDep, viewer: ConsoleViewer, query: UsageQuery) -> UsageView:
    """Three sums of the ledger: by group, by time, and by time of the largest groups. Raises `ApiError`: 403, the key
    is a program's."""
    check_sees_usage(viewer.principal)
    (start, end), width = _span(gateway, query), _WIDTH[query.range]
    where, column = query.filter_for(viewer), _COLUMNS[query.group]
    tenant, currency = viewer.principal.organization_id, gateway.config.metering.currency

    async def sums(of: UsageFilter, width: int, *group_by: str) -> list[UsageSum]:
        return await gateway.control.reports.sums(tenant, of, start=start, end=end, width=width, group_by=group_by)

    found = await sums(where, 0, column)
    found.sort(key=lambda each: (each.cost, each.input_tokens + each.output_tokens), reverse=True)
    names = await _names(gateway, viewer, query, found[:_MAX_ROWS])
    times = list(range(start, end, width))
    by_time = {each.start: each for each in await sums(where, width) if each.currency == currency}
    largest = [value for each in found if each.currency == currency and (value := each.group[column])][:_MAX_LINES]
    lines: dict[str, dict[int, UsageSum]] = {value: {} for value in largest}
    for each in await sums(_restricted(where, query.group, largest), width, column) if largest else ():
        value = each.group[column]
        if each.currency == currency and value in lines:
            lines[value][each.start] = each
    return UsageView(
        start=start,
        end=end,
        width_s=width,
        group=query.group,
        currency=currency,
        rows=[_row(each, each.group[column], names) for each in found[:_MAX_ROWS]],
        more_rows=max(0, len(found) - _MAX_ROWS),
        buckets=[_bucket(at, by_time.get(at)) for at in times],
        lines=_lines(times, by_time, [(_label(names[value]), each) for value, each in lines.items()], len(found)),
        names={each: names[each][0] for each in _asked(query) if each in names},
    )


@router.get("/usage.csv", dependencies=CHECKED)
async def export_usage(gateway: GatewayDep, viewer: ConsoleViewer, query: UsageQuery) -> Annotated[Response, str]:
    """The same use by day (UTC) and group, as CSV. Raises `ApiError`: 400, there are more than 10,000 rows; 403, the
    key is a program's."""
    check_sees_usage(viewer.principal)
    start, end = _span(gateway, query)
    column, tenant = _COLUMNS[query.group], viewer.principal.organization_id
    found = await gateway.control.reports.sums(
        tenant, query.filter_for(viewer), start=start, end=end, width=DAY_S, group_by=(column,)
    )
    if len(found) > MAX_EXPORTED:
        message = f"There are {len(found)} rows, more than {MAX_EXPORTED}: choose a shorter range or a filter."
        raise invalid_request(message, "range")
    names = await _names(gateway, viewer, query, found)
    lines = [[_day(each.start), *_cells(_row(each, each.group[column], names))] for each in found]
    return Response(csv_lines([_EXPORTED, *lines]), headers=csv_headers(f"usage-by-day-and-{query.group}"))


def _span(gateway: Gateway, query: UsageQuery) -> tuple[int, int]:
    """Beginning and end of the range, in seconds since 1970; it begins with a bucket of its charts."""
    end = int(gateway.store.now()) + 1
    start = end - _SECONDS[query.range]
    return start - start % _WIDTH[query.range], end


def _day(at: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def _cells(row: UsageRow) -> list[object]:
    return [getattr(row, name) for name in _EXPORTED[1:]]


def _only(value: str | None) -> tuple[str, ...] | None:
    return None if value is None else (value,)


def _asked(query: UsageQuery) -> list[str]:
    return [each for each in (query.organization, query.project, query.key, query.user) if each is not None]


def _restricted(where: UsageFilter, group: Group, values: Sequence[str]) -> UsageFilter:
    """Only these values of the group. Of organisations there is no filter by several: all are summed."""
    only = tuple(values)
    match group:
        case "project":
            return replace(where, project_ids=only)
        case "model":
            return replace(where, models=only)
        case "key":
            return replace(where, key_ids=only)
        case "user":
            return replace(where, user_ids=only)
        case "organization":
            return where


async def _names(
    gateway: Gateway, viewer: Viewer, query: UsageQuery, sums: Sequence[UsageSum]
) -> dict[str, tuple[str, str]]:
    """Name and detail by id, of the sums' groups and of what is filtered by; of what is gone, the id. What has no use
    that the viewer may see is not named."""
    column = _COLUMNS[query.group]
    ids = {value for each in sums if (value := each.group[column])}
    named = ids.union(_asked(query)) if sums else ids
    async with gateway.store.reading() as session:
        projects = await find_projects(session, named)
        keys = await labels_of_keys(session, named)
        users = await names_of_users(session, named)
    of_groups = ids if query.group == "organization" else set()
    asked = {query.organization} if query.organization and sums else set()
    owners = {each.organization_id for each in projects}
    organizations = await viewer.names_of(owners | of_groups | asked)
    names = {each: (each, "") for each in named}
    names |= {each: (name, "") for each, name in (organizations | users).items() if each in named}
    names |= {each.id: (each.name, organizations[each.organization_id]) for each in projects}
    return names | keys


def _label(name: tuple[str, str]) -> str:
    """Name of a line: projects of several organisations often have the same."""
    return f"{name[1]} / {name[0]}" if name[1] else name[0]


def _row(found: UsageSum, value: str | None, names: dict[str, tuple[str, str]]) -> UsageRow:
    name, detail = ("", "") if value is None else names.get(value, (value, ""))
    return UsageRow(
        id=value,
        name=name,
        detail=detail,
        currency=found.currency,
        requests=found.requests,
        input_tokens=found.input_tokens,
        cached_tokens=found.cached_tokens,
        output_tokens=found.output_tokens,
        cost=found.cost / BILLIONTHS,
    )


def _bucket(at: int, found: UsageSum | None) -> UsageBucket:
    found = found or UsageSum(at, {})
    return UsageBucket(
        at=at,
        requests=found.requests,
        input_tokens=found.input_tokens,
        cached_tokens=found.cached_tokens,
        output_tokens=found.output_tokens,
        cost=found.cost / BILLIONTHS,
    )


def _lines(
    times: Sequence[int], whole: dict[int, UsageSum], largest: list[tuple[str, dict[int, UsageSum]]], groups: int
) -> list[UsageLine]:
    """A line for each of the largest, and one for the others together where there are any."""
    lines = [_line(name, [found.get(at) for at in times]) for name, found in largest]
    if groups > len(lines):
        every = _line("others" if lines else "all", [whole.get(at) for at in times])
        tokens = [all_ - sum(of) for all_, *of in zip(every.tokens, *(line.tokens for line in lines), strict=True)]
        cost = [max(0.0, all_ - sum(of)) for all_, *of in zip(every.cost, *(line.cost for line in lines), strict=True)]
        lines.append(UsageLine(every.name, tokens, cost))
    return lines


def _line(name: str, found: Sequence[UsageSum | None]) -> UsageLine:
    return UsageLine(
        name,
        [0 if each is None else each.input_tokens + each.output_tokens for each in found],
        [0.0 if each is None else each.cost / BILLIONTHS for each in found],
    )
