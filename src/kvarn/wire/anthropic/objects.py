"""Objects of Anthropic's API beside messages: lists, files, models."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Generic, TypeVar

import msgspec

from kvarn.wire.openai.models import Model

ItemT = TypeVar("ItemT")


class Listed(msgspec.Struct, Generic[ItemT], frozen=True, kw_only=True):
    """A page of a list, newest first."""

    data: list[ItemT]
    has_more: bool
    first_id: str | None
    last_id: str | None


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str


class FileMetadata(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created_at: datetime
    filename: str
    mime_type: str  # as its name tells
    size_bytes: int
    expires_at: datetime | None
    downloadable: bool = True
    type: str = "file"


class FilePage(msgspec.Struct, frozen=True, kw_only=True):
    """Files, newest first; `next_page` is null after the last."""

    data: list[FileMetadata]
    has_more: bool
    first_id: str | None
    last_id: str | None
    next_page: str | None


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    display_name: str
    created_at: str  # RFC 3339
    max_input_tokens: int | None
    max_tokens: int | None  # of an answer at most
    type: str = "model"
    lifecycle: str = "active"
    line: str | None = None
    capabilities: None = None
    deprecated_at: str | None = None
    retires_at: str | None = None


def model_info(model: Model) -> ModelInfo:
    return ModelInfo(
        id=model.id,
        display_name=model.id,
        created_at=datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=model.max_model_len,
        max_tokens=model.max_model_len,
    )
