"""What a request for usage or costs asks for, read from its query."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from starlette.requests import Request

from kvarn.gateway.pagination import check_query, query_flag, query_value, query_values
from kvarn.store.ledger import DAY_S, HOUR_S, UsageFilter
from kvarn.store.owner import Principal, Role
from kvarn.wire.openai.errors import ApiError, invalid_request

MINUTE_S = 60
_LATEST = 1 << 40
_PAGE = "page_"


@dataclass(frozen=True, slots=True)
class Widths:
    """Buckets of a width: seconds, and how many a page holds."""

    seconds: int
    default_limit: int
    max_limit: int


USAGE_WIDTHS = {"1d": Widths(DAY_S, 7, 31), "1h": Widths(HOUR_S, 24, 168), "1m": Widths(MINUTE_S, 60, 1440)}
COST_WIDTHS = {"1d": Widths(DAY_S, 7, 180)}


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Buckets of time from `first` on, up to `last`, aligned to their width in UTC."""

    start: int
    end: int
    """Not included."""
    width: int
    first: int
    """Beginning of the page's first bucket."""
    last: int
    """End of its last one."""
    group_by: tuple[str, ...]
    where: UsageFilter

    @property
    def next_page(self) -> str | None:
        """Cursor of the next page; None behind the last one."""
        return f"{_PAGE}{self.last}" if self.last < self.end else None

    def bounds(self, bucket: int) -> tuple[int, int]:
        """What of a bucket was asked for."""
        return max(bucket, self.start), min(bucket + self.width, self.end)


def read_usage_query(
    request: Request,
    principal: Principal,
    *,
    widths: Mapping[str, Widths],
    groups: Collection[str],
    filters: Collection[str],
) -> UsageQuery:
    """Read a query.

    Args:
        request: The request.
        principal: Who asks; see `visible_to`.
        widths: Bucket widths by name; the first is the default.
        groups: What results may be grouped by.
        filters: Names of the parameters that narrow the results: `project_ids`, `user_ids`, `api_key_ids`, `models`,
            `batch`.

    Raises:
        ApiError: 400 that names the parameter that is unknown or wrong; 403 for who may not see usage.
    """
    check_query(request, {"start_time", "end_time", "bucket_width", "group_by", "limit", "page", *filters})
    start = _second(request, "start_time")
    if start is None:
        raise invalid_request("Missing required parameter: start_time", "start_time", "missing_required_parameter")
    end = _second(request, "end_time")
    end = max(int(time.time()) + 1, start + 1) if end is None else end
    if end <= start:
        raise invalid_request("'end_time' must be later than 'start_time'.", "end_time")
    width = widths[_one_of(request, "bucket_width", list(widths)) or next(iter(widths))]
    limit = _limit(request, width)
    first = _page(request, start, end, width.seconds)
    group_by = tuple(dict.fromkeys(query_values(request, "group_by")))
    for group in group_by:
        if group not in groups:
            raise invalid_request(f"Invalid value for 'group_by': it must be among {', '.join(groups)}.", "group_by")
    return UsageQuery(
        start,
        end,
        width.seconds,
        first,
        min(first + limit * width.seconds, end + -end % width.seconds),
        group_by,
        _narrowed(request, visible_to(principal), filters),
    )


def visible_to(principal: Principal) -> UsageFilter:
    """Whose usage somebody may see: an administrator that of the organisation, a member that of the project.

    Raises:
        ApiError: 403, the key is a program's.
    """
    if principal.role is Role.ADMIN:
        return UsageFilter(organization_id=principal.organization_id)
    if principal.role is Role.MEMBER:
        return UsageFilter(organization_id=principal.organization_id, project_ids=(principal.project_id,))
    message = "This key may not see usage: its role is 'service'. Use a key of role 'admin' or 'member'."
    raise ApiError(403, message, code="insufficient_permissions")


def _narrowed(request: Request, visible: UsageFilter, filters: Collection[str]) -> UsageFilter:
    def values(name: str) -> tuple[str, ...] | None:
        return (tuple(query_values(request, name)) or None) if name in filters else None

    projects = values("project_ids")
    if visible.project_ids is not None:
        own = visible.project_ids
        projects = own if projects is None else tuple(project for project in projects if project in own)
    batch = query_flag(request, "batch") if "batch" in filters and query_value(request, "batch") else None
    return UsageFilter(
        organization_id=visible.organization_id,
        project_ids=projects,
        user_ids=values("user_ids"),
        key_ids=values("api_key_ids"),
        models=values("models"),
        batch=batch,
    )


def _second(request: Request, name: str) -> int | None:
    text = query_value(request, name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 14 and int(text) < _LATEST):
        raise invalid_request(f"Invalid value for {name!r}: it must be a time in seconds since 1970.", name)
    return int(text)


def _one_of(request: Request, name: str, allowed: list[str]) -> str | None:
    text = query_value(request, name)
    if text is not None and text not in allowed:
        raise invalid_request(f"Invalid value for {name!r}: it must be one of {', '.join(allowed)}.", name)
    return text


def _limit(request: Request, width: Widths) -> int:
    text = query_value(request, "limit")
    if text is None:
        return width.default_limit
    limit = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
    if not 1 <= limit <= width.max_limit:
        raise invalid_request(f"Invalid value for 'limit': it must be from 1 to {width.max_limit}.", "limit")
    return limit


def _page(request: Request, start: int, end: int, width: int) -> int:
    """Beginning of the page's first bucket."""
    first = start - start % width
    text = query_value(request, "page")
    if text is None:
        return first
    digits = text.removeprefix(_PAGE)
    page = int(digits) if text.startswith(_PAGE) and digits.isascii() and digits.isdecimal() and len(digits) < 14 else 0
    if page % width or not first <= page < end:
        raise invalid_request("Invalid value for 'page': give the 'next_page' of the answer before.", "page")
    return page
