"""Files: `/v1/files`."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field

from kvarn.wire.openai.common import RequestModel

HOUR_S = 3600
MAX_EXPIRY_S = 30 * 24 * HOUR_S


class FileExpiry(RequestModel):
    """When a file goes by itself."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=HOUR_S, le=MAX_EXPIRY_S)


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file, without its content."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    object: str = "file"
    status: str = "processed"
    expires_at: int | UnsetType = UNSET
