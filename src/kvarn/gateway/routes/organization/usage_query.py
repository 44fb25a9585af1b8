"""The query of a request for usage or costs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from kvarn.gateway.query import Flag, QueryModel, Text, Texts, Time
from kvarn.store.ledger import DAY_S, HOUR_S, UsageFilter
from kvarn.store.owner import Principal, Role
from kvarn.wire.openai.common import disagreement
from kvarn.wire.openai.errors import ApiError, invalid_request

MINUTE_S = 60
_CURSOR = "page_"
_WIDTHS_S = {"1d": DAY_S, "1h": HOUR_S, "1m": MINUTE_S}


@dataclass(frozen=True, slots=True)
class Buckets:
    """Buckets of time from `first` on, up to `last`, aligned to their width in UTC."""

    start: int
    end: int
    """Not included."""
    width: int
    first: int
    """Beginning of the page's first bucket."""
    last: int
    """End of its last one."""

    @property
    def next_page(self) -> str | None:
        """Cursor of the next page; None behind the last one."""
        return f"{_CURSOR}{self.last}" if self.last < self.end else None

    def bounds(self, bucket: int) -> tuple[int, int]:
        """The part of a bucket within start and end."""
        return max(bucket, self.start), min(bucket + self.width, self.end)


class BucketQuery(QueryModel):
    """Times and filters of all requests for usage and costs."""

    limits: ClassVar[Mapping[str, tuple[int, int]]]
    """Buckets of a page by their width: the default, and the maximum."""

    start_time: Time = Field(description="The first second, since 1970, that is counted.")
    end_time: Time | None = Field(None, description="The first second that is not counted any more. Default: now.")
    limit: int | None = Field(None, ge=1, le=1440, description="Buckets of a page.")
    page: Text | None = Field(None, description="`next_page` of the answer before.")
    project_ids: Texts = Field(description="Of these projects only.")
    api_key_ids: Texts = Field(description="Of these API keys only.")

    @model_validator(mode="after")
    def _fields_agree(self) -> BucketQuery:
        if self.end_time is not None and self.end_time <= self.start_time:
            raise disagreement("'end_time' must be later than 'start_time'.", "end_time")
        name = self._chosen("bucket_width")
        max_limit = self.limits[name][1]
        if self.limit is not None and self.limit > max_limit:
            why = f"Invalid value for 'limit': at most {max_limit} where 'bucket_width' is '{name}'."
            raise disagreement(why, "limit")
        return self

    @property
    def buckets(self) -> Buckets:
        """The buckets of the page.

        Raises:
            ApiError: 400, `page` is not a cursor of this query.
        """
        start = self.start_time
        end = max(int(time.time()) + 1, start + 1) if self.end_time is None else self.end_time
        name = self._chosen("bucket_width")
        width = _WIDTHS_S[name]
        first = _first_bucket(self.page, start, end, width)
        limit = self.limit or self.limits[name][0]
        return Buckets(start, end, width, first, min(first + limit * width, end + -end % width))

    @property
    def groups(self) -> tuple[str, ...]:
        """What results are grouped by, each once."""
        return tuple(dict.fromkeys(self._chosen("group_by")))

    def filter_for(self, principal: Principal) -> UsageFilter:
        """The events that are summed: of those that somebody may see (see `visible_to`), those of the filters."""
        visible = visible_to(principal)
        projects = tuple(self.project_ids) or None
        if visible.project_ids is not None:
            own = visible.project_ids
            projects = own if projects is None else tuple(project for project in projects if project in own)
        return UsageFilter(
            organization_id=visible.organization_id,
            project_ids=projects,
            user_ids=tuple(getattr(self, "user_ids", ())) or None,
            key_ids=tuple(self.api_key_ids) or None,
            models=tuple(getattr(self, "models", ())) or None,
            batch=getattr(self, "batch", None),
        )

    def _chosen(self, name: str) -> Any:
        return getattr(self, name)  # each kind has its own choices


_GROUP_BY = "One result for each value of these. Default: one for all."


class CostQuery(BucketQuery):
    """`/v1/organization/costs`."""

    limits: ClassVar = {"1d": (7, 180)}

    bucket_width: Literal["1d"] = Field("1d", description="Width of a bucket.")
    group_by: list[Literal["project_id", "line_item", "api_key_id"]] = Field([], description=_GROUP_BY)
    limit: int | None = Field(None, ge=1, le=180, description="Buckets of a page. Default: 7.")


class _UsageFields(BucketQuery):
    limits: ClassVar = {"1d": (7, 31), "1h": (24, 168), "1m": (60, 1440)}

    bucket_width: Literal["1d", "1h", "1m"] = Field("1d", description="Width of a bucket.")
    limit: int | None = Field(
        None,
        ge=1,
        le=1440,
        description="Buckets of a page. Default: 7 of `1d` (at most 31), 24 of `1h` (at most 168), 60 of `1m`.",
    )
    user_ids: Texts = Field(description="Of these users only.")
    models: Texts = Field(description="Of these models only.")


class UsageQuery(_UsageFields):
    """`/v1/organization/usage/...` of what has no output tokens."""

    group_by: list[Literal["project_id", "user_id", "api_key_id", "model"]] = Field([], description=_GROUP_BY)


class CompletionsUsageQuery(_UsageFields):
    """`/v1/organization/usage/completions`."""

    group_by: list[Literal["project_id", "user_id", "api_key_id", "model", "batch", "service_tier"]] = Field(
        [], description=_GROUP_BY
    )
    batch: Flag | None = Field(
        None, description="`true`: of batches only; `false`: of all else only. Default: of both."
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


def _first_bucket(page: str | None, start: int, end: int, width: int) -> int:
    """Beginning of the page's first bucket."""
    first = start - start % width
    if page is None:
        return first
    digits = page.removeprefix(_CURSOR)
    is_cursor = page.startswith(_CURSOR) and digits.isascii() and digits.isdecimal() and len(digits) < 14
    begin = int(digits) if is_cursor else 0
    if begin % width or not first <= begin < end:
        raise invalid_request("Invalid value for 'page': give the 'next_page' of the answer before.", "page")
    return begin
