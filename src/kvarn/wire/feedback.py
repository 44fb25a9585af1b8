"""Feedback on answers: `/v1/feedback`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from pydantic import AfterValidator, Field, model_validator

from kvarn.wire.openai.common import Metadata, RequestModel, check_printable, disagreement, validation_error

_MAX_COMMENT_BYTES = 4096


def _check_comment(value: str) -> str:
    if len(value.encode()) > _MAX_COMMENT_BYTES:
        raise validation_error("too_long", f"it may have at most {_MAX_COMMENT_BYTES} bytes")
    return value


Label = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(check_printable)]


class FeedbackRequest(RequestModel):
    """An opinion on an answer. At least one of `rating`, `score`, `comment` and `labels`."""

    request_id: Annotated[str, Field(min_length=1, max_length=128), AfterValidator(check_printable)]
    """Id of the answer, such as `chatcmpl-…`, or what its header `x-request-id` said."""
    rating: Literal["up", "down"] | None = None
    score: float | None = Field(None, ge=0, le=1)
    comment: Annotated[str, AfterValidator(_check_comment)] | None = None
    labels: list[Label] = Field(default_factory=list, max_length=16)
    user: Annotated[str, Field(min_length=1, max_length=128), AfterValidator(check_printable)] | None = None
    """End user whose opinion it is. Default: the user of the key."""
    metadata: Metadata | None = None

    @model_validator(mode="after")
    def _says_something(self) -> FeedbackRequest:
        if self.rating is None and self.score is None and not self.comment and not self.labels:
            raise disagreement("Give at least one of 'rating', 'score', 'comment' and 'labels'.", "rating")
        return self


class FeedbackObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "feedback"
    created_at: int
    changed_at: int
    project_id: str
    request_id: str
    user: str
    model: str
    version: str
    """Number of the deployment version, else the beginning of the fingerprint of the checkpoint."""
    rating: Literal["up", "down"] | None
    score: float | None
    comment: str | None
    labels: list[str]
    metadata: dict[str, str]
