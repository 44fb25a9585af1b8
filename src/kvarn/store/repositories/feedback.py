"""Feedback on answers, tied to the usage events of their requests."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, func, select

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError
from kvarn.store.ids import event_ids, new_id
from kvarn.store.models import Feedback, UsageEvent
from kvarn.store.models.usage import NAMED
from kvarn.store.owner import Owner, Principal, Role
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import find_owned, given_values, insert
from kvarn.store.repositories.stored_bytes import ROW_BYTES, json_bytes, storing

MAX_GROUPS = 1000
_ANSWER_ID = re.compile(r"(?:req-|chatcmpl-|cmpl-|msg_|resp_)([0-9a-f]{32})")
_DAY_S = 24 * 3600


async def find_answered(store: Store, owner: Owner, request: str) -> UsageEvent | None:
    """The usage event of a project's request: of the latest turn, and of requests with one id the latest. `request` is
    the id of an answer, or what the header `x-request-id` says."""
    own = _ANSWER_ID.fullmatch(request)
    if own and (event := await _latest(store, owner, UsageEvent.id.in_(event_ids(own[1])))) is not None:
        return event
    return await _latest(store, owner, NAMED & (UsageEvent.request_id == request))


async def _latest(store: Store, owner: Owner, found: Any) -> UsageEvent | None:
    of_project = UsageEvent.organization_id == owner.organization_id, UsageEvent.project_id == owner.project_id
    query = select(UsageEvent).where(found, *of_project)
    async with store.reading() as session:
        event: UsageEvent | None = await session.scalar(
            query.order_by(UsageEvent.finished_at.desc(), UsageEvent.id.desc()).limit(1)
        )
        return event


@dataclass(frozen=True, slots=True)
class Opinion:
    rating: str | None = None
    score: float | None = None
    comment: str | None = None
    labels: Sequence[str] = ()
    extra: Mapping[str, str] | None = None


async def keep_feedback(
    store: Store, principal: Principal, event: UsageEvent, author: str | None, opinion: Opinion
) -> Feedback:
    """Keep what an author (None: the user of the key) thinks of an answer; what they thought before is replaced. Raises
    as `storing` does, and `ConflictError`: another one gave the opinion that it would replace."""
    now, owner, giver = int(store.now()), principal.owner, _giver(principal)
    model, version = model_and_version(event.model, event.model_version)
    labels, extra = list(opinion.labels), dict(opinion.extra or {})
    counted = ROW_BYTES + len((opinion.comment or "").encode()) + json_bytes(labels, extra)
    changes = {
        "changed_at": now,
        "rating": opinion.rating,
        "score": opinion.score,
        "comment": opinion.comment,
        "labels": labels,
        "extra": extra,
        "counted_bytes": counted,
    }
    first = {
        "id": new_id("feedback_"),
        "organization_id": owner.organization_id,
        "project_id": owner.project_id,
        "created_at": now,
        "event_id": event.id,
        "request_id": event.request_id,
        "author": author or principal.user_id or "",
        "given_by": giver,
        "model": model,
        "version": version,
    }
    async with storing(store, owner.organization_id, counted) as session:
        statement = insert(session, Feedback).values(first | changes)
        same = ["project_id", "event_id", "author"]
        written = statement.on_conflict_do_update(
            index_elements=same, set_=changes, where=Feedback.given_by == giver
        ).returning(Feedback)
        found = await session.execute(written, execution_options={"populate_existing": True})
        kept: Feedback | None = found.scalar_one_or_none()
        if kept is None:
            raise ConflictError("Another key's user gave this author's feedback on the answer: name another 'user'.")
    return kept


async def delete_feedback(store: Store, principal: Principal, feedback_id: str) -> None:
    """Delete an opinion. Raises `NotFoundError`: there is none, or another one gave it and the key is no
    administrator's."""
    async with store.transaction() as session:
        found = await find_owned(session, principal.owner, Feedback, feedback_id, to_change=True)
        if principal.role is not Role.ADMIN and found.given_by != _giver(principal):
            raise NotFoundError(f"This key gave no feedback {feedback_id!r}.")
        await session.delete(found)


def _giver(principal: Principal) -> str:
    """The user in whose name a key gives feedback, else the key; all programs of a project are one."""
    return principal.user_id or ("" if principal.role is Role.SERVICE else principal.key_id or "")


def model_and_version(model: str, fingerprint: str) -> tuple[str, str]:
    """Name and version of what answered: a deployment's number where it is one, else the beginning of the checkpoint's
    fingerprint."""
    name, _, number = model.partition("@")
    return name, number or fingerprint[:12]


async def list_feedback(
    store: Store,
    organization_id: str,
    cursor: Cursor,
    *,
    project_ids: Collection[str] = (),
    model: str | None = None,
    rating: str | None = None,
) -> Page[Feedback]:
    wanted = given_values((Feedback.model, model), (Feedback.rating, rating))
    query = select(Feedback).where(Feedback.organization_id == organization_id, *wanted)
    if project_ids:
        query = query.where(Feedback.project_id.in_(project_ids))
    async with store.reading() as session:
        return await read_page(session, query, cursor, (Feedback.created_at, Feedback.id))


@dataclass(frozen=True, slots=True)
class FeedbackSum:
    """Feedback of a day (UTC) on one version of a model."""

    day_at: int
    model: str
    version: str
    up: int
    down: int
    count: int
    mean_score: float | None


async def sum_feedback(
    store: Store, organization_id: str | None, project_id: str | None, since: int
) -> list[FeedbackSum]:
    """Feedback by day and version, newest day first: of a project, of an organisation, or (both None) of all."""
    day = (Feedback.created_at - Feedback.created_at % _DAY_S).label("day")
    keys = (day, Feedback.model, Feedback.version)
    owned = given_values((Feedback.organization_id, organization_id), (Feedback.project_id, project_id))
    query = (
        select(
            *keys,
            func.sum(case((Feedback.rating == "up", 1), else_=0)),
            func.sum(case((Feedback.rating == "down", 1), else_=0)),
            func.count(),
            func.avg(Feedback.score),
        )
        .where(Feedback.created_at >= since, *owned)
        .group_by(*keys)
        .order_by(day.desc(), Feedback.model, Feedback.version)
        .limit(MAX_GROUPS)
    )
    async with store.reporting() as session:
        return [
            FeedbackSum(int(at), model, version, int(up), int(down), int(count), None if mean is None else float(mean))
            for at, model, version, up, down, count, mean in await session.execute(query)
        ]
