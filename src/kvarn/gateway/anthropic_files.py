"""Files as Anthropic's clients upload and list them."""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from starlette.datastructures import FormData, UploadFile

from kvarn.gateway.uploads import file_field, whole_number
from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.models import File
from kvarn.store.owner import Owner
from kvarn.store.repositories.files import find_file, list_files
from kvarn.store.repositories.pages import Cursor, Page
from kvarn.wire.anthropic.objects import FileMetadata, FilePage
from kvarn.wire.openai.errors import invalid_request

DEFAULT_LIMIT = 20
_MAX_LIMIT = 1000
_EXPIRY = "expires_in_seconds"
_EXPIRY_S = range(3600, 90 * 24 * 3600 + 1)
_PAGE = "page_"


def anthropic_form(form: FormData) -> tuple[UploadFile, str, int | None]:
    file = file_field(form, "file", optional=(_EXPIRY,))
    seconds = whole_number(form.get(_EXPIRY))
    if seconds is not None and (not isinstance(seconds, int) or seconds not in _EXPIRY_S):
        raise invalid_request(f"{_EXPIRY!r} must be a number from {_EXPIRY_S[0]} to {_EXPIRY_S[-1]}.", _EXPIRY)
    return file, "user_data", seconds


def file_metadata(file: File) -> FileMetadata:
    return FileMetadata(
        id=file.id,
        created_at=_time(file.created_at),
        filename=file.filename,
        mime_type=mimetypes.guess_type(file.filename)[0] or "application/octet-stream",
        size_bytes=file.size,
        expires_at=None if file.expires_at is None else _time(file.expires_at),
    )


def page_cursor(limit: int, page: str | None, after_id: str | None, before_id: str | None) -> Cursor:
    """A page by its name, or by ids as older clients do. Raises `ApiError`: 400, several are named."""
    if sum(each is not None for each in (page, after_id, before_id)) > 1:
        raise invalid_request("'page', 'after_id' and 'before_id' do not go together: give one.", "page")
    return Cursor(min(limit, _MAX_LIMIT), page.removeprefix(_PAGE) if page is not None else after_id, before_id)


async def file_page(store: Store, owner: Owner, cursor: Cursor, ids: Sequence[str]) -> FilePage:
    """A page of an owner's files without those that batches of messages keep, or the files of these ids. Raises
    `NotFoundError`: the cursor's file is not in the list."""
    page: Page[File] = Page([], has_more=False)
    if not ids:
        page = await list_files(store, owner, cursor, of_batches=False)
    for file_id in dict.fromkeys(ids):
        with suppress(NotFoundError):
            page.items.append(await find_file(store, owner, file_id))
    data = [file_metadata(file) for file in page.items]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    following = f"{_PAGE}{last}" if page.has_more and cursor.before is None else None
    return FilePage(data=data, has_more=page.has_more, first_id=first, last_id=last, next_page=following)


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
