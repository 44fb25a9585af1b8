"""Batches: `/v1/batches`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field

from kvarn.wire.openai.common import Metadata, RequestModel
from kvarn.wire.openai.files import FileExpiry

WINDOW_S = {"24h": 24 * 3600}  # seconds of each completion window


class BatchRequest(RequestModel):
    input_file_id: str = Field(max_length=64, pattern=r"^[!-~]+$")
    endpoint: str
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: FileExpiry | None = None


class BatchFault(msgspec.Struct, frozen=True, kw_only=True):
    """Error in a batch's input; `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a batch: all, those answered, and those answered with an error."""

    total: int
    completed: int
    failed: int


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: str
    created_at: int
    expires_at: int
    request_counts: RequestCounts
    usage: dict[str, Any]
    metadata: dict[str, Any] | None
    object: str = "batch"
    model: str | UnsetType = UNSET
    errors: dict[str, Any] | UnsetType = UNSET
    output_file_id: str | UnsetType = UNSET
    error_file_id: str | UnsetType = UNSET
    in_progress_at: int | UnsetType = UNSET
    finalizing_at: int | UnsetType = UNSET
    completed_at: int | UnsetType = UNSET
    failed_at: int | UnsetType = UNSET
    expired_at: int | UnsetType = UNSET
    cancelling_at: int | UnsetType = UNSET
    cancelled_at: int | UnsetType = UNSET


class LineResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a line: the status and the body it would have had over HTTP."""

    status_code: int
    request_id: str
    body: Any
    warnings: list[str] | UnsetType = UNSET  # what of the request was ignored (an extension)


class OutputLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of an output or error file. `error` says why there is no response."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: dict[str, str] | None
