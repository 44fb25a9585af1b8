"""`/v1/feedback`: opinions on answers, from those who got them; `/v1/organization/feedback` lists them."""

from __future__ import annotations

import asyncio
from typing import Literal

from pydantic import Field

from kvarn.gateway.dependencies import ADMINISTRATION, AdminDep, GatewayDep, PrincipalDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import CHECKED, ListQuery, Text, Texts, described, list_answer
from kvarn.gateway.state import Gateway
from kvarn.store.models import Feedback, UsageEvent
from kvarn.store.owner import Owner
from kvarn.store.repositories import feedback as stored
from kvarn.wire.feedback import FeedbackObject, FeedbackRequest
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.lists import DeletedObject, ListObject

router = json_router("/v1/feedback", "feedback", CHECKED)
administration = json_router("/v1/organization/feedback", "organization", ADMINISTRATION)

_LEDGER_LAG_S = 1.0
"""Longest wait for the usage event of an answer that has just ended."""


class FeedbackQuery(ListQuery):
    projects: Texts = Field(alias="project_ids[]", description="On answers to these projects only.")
    model: Text | None = Field(None, description="On this model's answers only.")
    rating: Literal["up", "down"] | None = Field(None, description="With this rating only.")


@router.post("", summary="Give feedback on an answer")
async def give_feedback(gateway: GatewayDep, principal: PrincipalDep, body: FeedbackRequest) -> FeedbackObject:
    """Keep what an author thinks of an answer to this project; what they said of it before is replaced."""
    event = await _find_answered(gateway, principal.owner, body.request_id)
    opinion = stored.Opinion(
        rating=body.rating,
        score=body.score,
        comment=body.comment and body.comment.replace("\0", "\ufffd"),  # PostgreSQL's texts have no U+0000
        labels=body.labels,
        extra=body.metadata,
    )
    kept = await stored.keep_feedback(gateway.store, principal, event, body.user, opinion)
    gateway.metrics.feedback.labels(kept.model, kept.rating or "none").inc()
    return _describe(kept)


@router.delete("/{feedback_id}", summary="Take feedback back")
async def delete_feedback(gateway: GatewayDep, principal: PrincipalDep, feedback_id: str) -> DeletedObject:
    """Delete what the key's own user gave; an administrator's key deletes any."""
    await stored.delete_feedback(gateway.store, principal, feedback_id)
    return DeletedObject(id=feedback_id, object="feedback.deleted")


@administration.get("", summary="List feedback")
async def list_feedback(admin: AdminDep, query: FeedbackQuery) -> ListObject[FeedbackObject]:
    """Feedback on answers to the organisation's projects, newest first."""
    page = await stored.list_feedback(
        admin.gateway.store,
        admin.organization_id,
        query.cursor,
        project_ids=query.projects,
        model=query.model,
        rating=query.rating,
    )
    return list_answer(page, _describe)


async def _find_answered(gateway: Gateway, owner: Owner, request: str) -> UsageEvent:
    """The usage event of an answer; one that has just ended may have to be written first."""
    lag_s = gateway.config.metering.flush_interval_s
    for pause_s in (0.0, lag_s, 4 * lag_s):
        await asyncio.sleep(min(pause_s, _LEDGER_LAG_S))
        if (event := await stored.find_answered(gateway.store, owner, request)) is not None:
            return event
    raise ApiError(
        404,
        f"This project has had no answer {request[:128]!r}: give the answer's id, or what its header x-request-id "
        "said, once the answer has ended.",
        code="request_not_found",
        param="request_id",
    )


def _describe(feedback: Feedback) -> FeedbackObject:
    return described(FeedbackObject, feedback, user=feedback.author, metadata=feedback.extra)
