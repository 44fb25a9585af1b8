"""Requests that are over and were kept: written in bulk, listed, found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, func, or_, select, tuple_
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.observe.traces.traced import CLIENT_LEFT
from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.models import ApiKey, KeptDetail, KeptRequest
from kvarn.store.repositories.queries import insert, is_postgresql

Row = Mapping[str, Any]
"""Columns of a kept request, but for its number."""
MAX_COUNTED = 10_000
"""Requests that are counted at most."""
_FEW = 3000
"""Rows that are sorted rather than found by walking through an index in the order that is asked for."""
_NEIGHBOURS = 200


class KeptOrder(StrEnum):
    NEWEST = "newest"
    SLOWEST = "slowest"


class KeptPlace(NamedTuple):
    """Place in a list: the page goes on behind it, whether its row is still there or not."""

    value: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFilter:
    """Restrictions of a list; None restricts nothing."""

    organization_id: str | None = None
    project_id: str | None = None
    id: str | None = None
    """Beginning of the record's id or of the request id."""
    text: str | None = None
    """A session, user, model, version, adapter, error code, or the id or the name of a key."""
    session: str | None = None
    key_id: str | None = None
    end_user: str | None = None
    model: str | None = None
    model_version: str | None = None
    batch_id: str | None = None
    endpoint: str | None = None
    statuses: tuple[int, int] | None = None
    """First and last HTTP status."""
    outcome: str | None = None
    reason: str | None = None
    cause: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    min_total_us: int | None = None
    min_ttft_us: int | None = None


@dataclass(frozen=True, slots=True)
class KeptPage:
    items: list[KeptRequest]
    next: KeptPlace | None
    """Beginning of the next page; None: this is the last."""


async def add_kept(store: Store, rows: Sequence[Row], details: Mapping[str, bytes]) -> Counter[str]:
    """Write requests in one transaction, one that is there already once. Returns those that are there now by reason:
    others' organisations have been deleted. `details`: by the id of the request."""
    try:
        await _add(store, rows, details)
    except IntegrityError:
        written = Counter[str]()
        organizations = {row["organization_id"] for row in rows}
        for organization_id in organizations if len(organizations) > 1 else ():
            own = [row for row in rows if row["organization_id"] == organization_id]
            written += await add_kept(store, own, details)
        return written
    return Counter(row["reason"] for row in rows)


async def _add(store: Store, rows: Sequence[Row], details: Mapping[str, bytes]) -> None:
    async with store.transaction() as session:
        statement = insert(session, KeptRequest).on_conflict_do_nothing(index_elements=["id"])
        await session.execute(statement, [dict(row) for row in rows])
        packed = [{"id": row["id"], "packed": details[row["id"]]} for row in rows]
        await session.execute(insert(session, KeptDetail).on_conflict_do_nothing(index_elements=["id"]), packed)


async def list_kept(
    session: AsyncSession, where: KeptFilter, order: KeptOrder, limit: int, after: KeptPlace | None = None
) -> KeptPage:
    """A page of the requests that a filter selects."""
    key = KeptRequest.started_us if order is KeptOrder.NEWEST else KeptRequest.total_us
    hinted = not is_postgresql(session)
    query = select(KeptRequest).where(*_conditions(where, hinted=hinted))
    ordered = key + 0 if hinted and await _are_few(session, where, order) else key
    if after is not None:
        query = query.where(tuple_(ordered, KeptRequest.number) < tuple_(*after))
    query = query.order_by(ordered.desc(), KeptRequest.number.desc()).limit(limit + 1)
    found = list(await session.scalars(query))
    items, more = found[:limit], len(found) > limit
    last = items[-1] if more else None
    value = 0 if last is None else last.started_us if order is KeptOrder.NEWEST else last.total_us
    return KeptPage(items, None if last is None else KeptPlace(value, last.number))


def owner_and_time(where: KeptFilter) -> KeptFilter:
    """The same owner and time, and no other restriction."""
    return KeptFilter(
        organization_id=where.organization_id,
        project_id=where.project_id,
        since_us=where.since_us,
        until_us=where.until_us,
    )


async def count_kept(session: AsyncSession, where: KeptFilter) -> int:
    """Requests that a filter selects; `MAX_COUNTED` stands for so many or more."""
    hinted = not is_postgresql(session)
    some = select(KeptRequest.number).where(*_conditions(where, hinted=hinted)).limit(MAX_COUNTED).subquery()
    return await session.scalar(select(func.count()).select_from(some)) or 0


async def find_kept(session: AsyncSession, record_id: str, where: KeptFilter) -> tuple[KeptRequest, bytes]:
    """A request and its details, within a filter. Raises `NotFoundError`."""
    query = select(KeptRequest, KeptDetail.packed).join(KeptDetail, KeptDetail.id == KeptRequest.id)
    found = (await session.execute(query.where(KeptRequest.id == record_id, *_conditions(where)))).one_or_none()
    if found is None:
        raise NotFoundError(f"There is no request {record_id[:80]!r}: it was not kept, or has been deleted.")
    return found[0], found[1]


async def session_of(session: AsyncSession, name: str, where: KeptFilter) -> list[KeptRequest]:
    """The latest requests of a client's session, in their order."""
    query = select(KeptRequest).where(KeptRequest.session == name, *_conditions(where))
    latest = query.order_by(KeptRequest.started_us.desc(), KeptRequest.number.desc()).limit(_NEIGHBOURS)
    return list(await session.scalars(latest))[::-1]


async def details_of_shape(session: AsyncSession, of: KeptRequest, where: KeptFilter, limit: int) -> list[bytes]:
    """Details of other requests of its model that ended well, and whose prompts and answers were about as long."""
    tokens = KeptRequest.input_tokens
    query = (
        select(KeptDetail.packed)
        .join(KeptRequest, KeptDetail.id == KeptRequest.id)
        .where(
            KeptRequest.model == of.model,
            KeptRequest.endpoint == of.endpoint,
            KeptRequest.outcome == "finished",
            KeptRequest.id != of.id,
            KeptRequest.output_tokens.between(of.output_tokens * 3 // 4, of.output_tokens * 4 // 3 + 1),
            *_conditions(where),
        )
        .limit(limit // 2)
    )
    longer = tokens.between(of.input_tokens, of.input_tokens * 4 // 3 + 1)
    shorter = and_(tokens < of.input_tokens, tokens >= of.input_tokens * 3 // 4)
    found: list[bytes] = []
    for half, nearest in ((longer, tokens.asc()), (shorter, tokens.desc())):
        found += await session.scalars(query.where(half).order_by(nearest))
    return found


async def _are_few(session: AsyncSession, where: KeptFilter, order: KeptOrder) -> bool:
    """Whether few rows lie within bounds of a column that is not the one of the order: those are sorted. Else so many
    do that the first page is soon found by walking in order. PostgreSQL knows that from its statistics."""
    if order is KeptOrder.NEWEST:
        bounds = _between(KeptRequest.total_us, where.min_total_us, None)
    else:
        bounds = _between(KeptRequest.started_us, where.since_us, where.until_us)
    if not bounds:
        return False
    some = select(KeptRequest.number).where(*_owned(where), *bounds).limit(_FEW).subquery()
    return (await session.scalar(select(func.count()).select_from(some)) or 0) < _FEW


def _owned(where: KeptFilter) -> list[ColumnElement[bool]]:
    if where.project_id is not None:
        return [KeptRequest.project_id == where.project_id]  # `_conditions` names the organisation, too
    return [] if where.organization_id is None else [KeptRequest.organization_id == where.organization_id]


def _conditions(where: KeptFilter, *, hinted: bool = False) -> list[ColumnElement[bool]]:
    """The conditions of a filter. `hinted`: a column that many rows share is not read by its index where the owner's
    is the better one; SQLite has no statistics that would tell."""

    def common(column: Any, *, indexed: bool) -> Any:
        return column if indexed or not hinted else column.concat("")

    found = [
        *_owned(where),
        *_between(KeptRequest.started_us, where.since_us, where.until_us),
        *_between(KeptRequest.total_us, where.min_total_us, None),
        *_between(KeptRequest.ttft_us, where.min_ttft_us, None),
    ]
    of_all, reason = where.organization_id is None and where.project_id is None, _reason(where)
    equal = (
        (KeptRequest.session, where.session),
        (KeptRequest.key_id, where.key_id),
        (KeptRequest.end_user, where.end_user),
        (KeptRequest.batch_id, where.batch_id),
        (KeptRequest.outcome, where.outcome),
        (KeptRequest.cause, where.cause),
        (common(KeptRequest.organization_id, indexed=where.project_id is None), where.organization_id),
        (common(KeptRequest.model, indexed=where.project_id is None), where.model),
        (common(KeptRequest.model_version, indexed=of_all), where.model_version),
        (common(KeptRequest.endpoint, indexed=of_all), where.endpoint),
        (common(KeptRequest.reason, indexed=reason != "ordinary"), reason),
    )
    found += [column == value for column, value in equal if value is not None]
    if where.statuses is not None:
        found.append(KeptRequest.status.between(*where.statuses))
    if where.id is not None:
        found.append(or_(_begins(KeptRequest.id, where.id), _begins(KeptRequest.request_id, where.id)))
    if where.text is not None:
        found.append(_is_of(where.text))
    return found


def _is_of(text: str) -> ColumnElement[bool]:
    """Whether a request is of a text. A key that is the reader's to see is one of a request that is theirs to see."""
    row = KeptRequest
    columns = (row.session, row.end_user, row.model, row.model_version, row.adapter, row.error_code, row.key_id)
    keys = select(ApiKey.id).where(ApiKey.name == text)
    return or_(*(column == text for column in columns), row.key_id.in_(keys))


def _reason(where: KeptFilter) -> str | None:
    """The reason for which all are kept that a filter selects: it has an index. What failed or was refused is kept for
    that; the others are many."""
    if where.reason is not None:
        return where.reason
    if where.statuses is not None and where.statuses[0] >= 500:
        return "error"
    if where.statuses is not None and 400 <= where.statuses[0] < CLIENT_LEFT and where.statuses[1] < 500:
        return "refused"
    return {"failed": "error", "refused": "refused"}.get(where.outcome or "")


def _between(column: Any, least: int | None, most: int | None) -> list[ColumnElement[bool]]:
    return [*([] if least is None else [column >= least]), *([] if most is None else [column < most])]


def _begins(column: Any, text: str) -> ColumnElement[bool]:
    return and_(column >= text, column < text[:-1] + chr(ord(text[-1]) + 1))
