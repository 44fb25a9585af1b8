"""Files: `/v1/files`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field

from kvarn.wire.openai.common import RequestModel

HOUR_S = 3600
MAX_PARTS = 1000
MAX_EXPIRY_S = 30 * 24 * HOUR_S


class FileExpiry(RequestModel):
    anchor: Literal["created_at"]
    seconds: int = Field(ge=HOUR_S, le=MAX_EXPIRY_S)


class UploadRequest(RequestModel):
    """The body that begins an upload in parts."""

    bytes: int = Field(ge=1)  # that all parts have together
    filename: str = Field(min_length=1, max_length=512)
    mime_type: str  # not looked at
    purpose: str
    expires_after: FileExpiry | None = None


class UploadCompletion(RequestModel):
    """The body that ends an upload: its parts in the order of the file."""

    part_ids: Annotated[list[str], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]
    md5: str | None = Field(None, pattern="^[0-9a-fA-F]{32}$")  # of the whole content


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    object: str = "file"
    status: str = "processed"
    expires_at: int | UnsetType = UNSET


class UploadObject(msgspec.Struct, frozen=True, kw_only=True):
    """An upload in parts; once it is completed, with its file."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: str
    object: str = "upload"
    file: FileObject | None = None


class UploadPart(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created_at: int
    upload_id: str
    object: str = "upload.part"
