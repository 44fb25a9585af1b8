"""Files as Anthropic's clients know them."""

from __future__ import annotations

from datetime import datetime

import msgspec


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
