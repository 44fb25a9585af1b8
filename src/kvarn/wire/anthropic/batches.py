"""Batches of messages: `/v1/messages/batches`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from pydantic import Field, model_validator

from kvarn.wire.openai.common import RequestModel, disagreement


class BatchedRequest(RequestModel):
    """A request of a batch; `params` is the body of `/v1/messages`, checked when it is run."""

    custom_id: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    params: dict[str, Any]


class MessageBatchRequest(RequestModel):
    requests: Annotated[list[BatchedRequest], Field(min_length=1, fail_fast=True)]

    @model_validator(mode="after")
    def _ids_differ(self) -> MessageBatchRequest:
        seen: set[str] = set()
        for index, request in enumerate(self.requests):
            if request.custom_id in seen:
                where = f"requests[{index}].custom_id"
                raise disagreement(f"{where!r} is {request.custom_id!r}, as that of an earlier request.", where)
            seen.add(request.custom_id)
        return self


class BatchCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of a batch; all are `processing` until it has ended."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch; `processing_status` is `in_progress`, `canceling` or `ended`."""

    id: str
    processing_status: str
    request_counts: BatchCounts
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    cancel_initiated_at: datetime | None
    results_url: str | None
    archived_at: datetime | None = None
    type: str = "message_batch"


class BatchResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of a request: `succeeded` with a message, `errored` with an error, `canceled` or `expired`."""

    type: str
    message: msgspec.Raw | None = None
    error: msgspec.Raw | dict[str, Any] | None = None


class BatchResultLine(msgspec.Struct, frozen=True, kw_only=True):
    custom_id: str
    result: BatchResult
