"""What a request for usage or costs asks for, read from its query."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request

from kvarn.gateway.parameters import LATEST_S, REQUIRED, TIME, Flag, Number, Parameter, Text, Texts
from kvarn.gateway.query import Query
from kvarn.store.ledger import DAY_S, HOUR_S, UsageFilter
from kvarn.store.owner import Principal, Role
from kvarn.wire.openai.errors import ApiError, invalid_request

MINUTE_S = 60
_CURSOR = "page_"

_START: Number[int] = Number(
    "start_time", "The first second, since 1970, that is counted.", REQUIRED, maximum=LATEST_S, kind=TIME
)
_END = Number(
    "end_time", "The first second that is not counted any more. Default: now.", None, maximum=LATEST_S, kind=TIME
)
_PAGE = Text("page", "`next_page` of the answer before.", default=None)
PROJECT_IDS = Texts("project_ids", "Of these projects only.")
USER_IDS = Texts("user_ids", "Of these users only.")
API_KEY_IDS = Texts("api_key_ids", "Of these API keys only.")
MODELS = Texts("models", "Of these models only.")
BATCH = Flag("batch", "`true`: of batches only; `false`: of all else only. Default: of both.", default=None)


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
        return f"{_CURSOR}{self.last}" if self.last < self.end else None

    def bounds(self, bucket: int) -> tuple[int, int]:
        """What of a bucket was asked for."""
        return max(bucket, self.start), min(bucket + self.width, self.end)


class UsageParameters(Query):
    """Declares the query of an operation that answers with usage or costs.

    Args:
        filters: What narrows the results: some of `PROJECT_IDS`, `USER_IDS`, `API_KEY_IDS`, `MODELS` and `BATCH`.
        widths: Bucket widths by name; the first is the default.
        groups: What results may be grouped by.
    """

    def __init__(self, *filters: Parameter, widths: Mapping[str, Widths], groups: tuple[str, ...]) -> None:
        self._widths = widths
        sizes = [f"{each.default_limit} of `{name}` (at most {each.max_limit})" for name, each in widths.items()]
        most = max(each.max_limit for each in widths.values())
        self._limit = Number("limit", f"Buckets of a page. Default: {', '.join(sizes)}.", None, minimum=1, maximum=most)
        self._width = Text("bucket_width", "Width of a bucket.", next(iter(widths)), choices=tuple(widths))
        self._group_by = Texts("group_by", "One result for each value of these. Default: one for all.", groups)
        super().__init__(_START, _END, self._width, self._group_by, *filters, self._limit, _PAGE)

    def read(self, request: Request, principal: Principal) -> UsageQuery:
        """Read a query.

        Args:
            request: The request.
            principal: Who asks; see `visible_to`.

        Raises:
            ApiError: 400 that names the parameter that is unknown or wrong; 403 for who may not see usage.
        """
        self.check(request)
        start, end = _START.read(request), _END.read(request)
        end = max(int(time.time()) + 1, start + 1) if end is None else end
        if end <= start:
            raise invalid_request("'end_time' must be later than 'start_time'.", "end_time")
        name = self._width.read(request)
        width = self._widths[name]
        limit = self._limit.read(request) or width.default_limit
        if limit > width.max_limit:
            message = f"Invalid value for 'limit': at most {width.max_limit} where 'bucket_width' is '{name}'."
            raise invalid_request(message, "limit")
        first = _first_bucket(request, start, end, width.seconds)
        return UsageQuery(
            start,
            end,
            width.seconds,
            first,
            min(first + limit * width.seconds, end + -end % width.seconds),
            tuple(dict.fromkeys(self._group_by.read(request))),
            self._narrowed(request, visible_to(principal)),
        )

    def _narrowed(self, request: Request, visible: UsageFilter) -> UsageFilter:
        projects = PROJECT_IDS.read(request) or None
        if visible.project_ids is not None:
            own = visible.project_ids
            projects = own if projects is None else tuple(project for project in projects if project in own)
        return UsageFilter(
            organization_id=visible.organization_id,
            project_ids=projects,
            user_ids=USER_IDS.read(request) or None,
            key_ids=API_KEY_IDS.read(request) or None,
            models=MODELS.read(request) or None,
            batch=BATCH.read(request),
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


def _first_bucket(request: Request, start: int, end: int, width: int) -> int:
    """Beginning of the page's first bucket."""
    first = start - start % width
    text = _PAGE.read(request)
    if text is None:
        return first
    digits = text.removeprefix(_CURSOR)
    is_cursor = text.startswith(_CURSOR) and digits.isascii() and digits.isdecimal() and len(digits) < 14
    page = int(digits) if is_cursor else 0
    if page % width or not first <= page < end:
        raise invalid_request("Invalid value for 'page': give the 'next_page' of the answer before.", "page")
    return page
