"""Uploads: a form (multipart/form-data, RFC 7578) whose file goes into the database.

Starlette parses the form, and keeps a file of more than a megabyte on the disk until it has come whole.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Receive

from kvarn.answers.errors import storage_full
from kvarn.gateway.state import Gateway
from kvarn.store.errors import StorageFullError
from kvarn.store.models import File, Upload
from kvarn.store.owner import Owner
from kvarn.store.repositories.files import FileWriter, publish_file
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.files import FileExpiry, FileObject

KeptT = TypeVar("KeptT")

PURPOSES = ("batch", "user_data", "assistants", "evals", "fine-tune")
"""Purposes of files. Only `batch` means something to the server."""

_OPTIONAL = ("expires_after[anchor]", "expires_after[seconds]")
_MAX_PARTS = 32
_MAX_FIELD_BYTES = 64 * 1024
_MAX_NAME_CHARS = 255
_PIECE_BYTES = 256 * 1024
_DAY_S = 24 * 3600


ReadForm = Callable[[FormData], tuple[UploadFile, str, int | None]]
"""Reads a form: the file, what it is for, and seconds that it is kept where it says so. Raises `ApiError`."""


async def take_file(gateway: Gateway, owner: Owner, request: Request, receive: Receive, read: ReadForm) -> File:
    """Read an upload to its end by `receive` and keep its file. Nothing is left of one that is refused. Raises
    `ApiError`, `StoreAwayError` or `ClientDisconnect`."""
    return await read_form(request, receive, lambda form: _keep(gateway, owner, form, read))


async def read_form(request: Request, receive: Receive, keep: Callable[[FormData], Awaitable[KeptT]]) -> KeptT:
    """Read a form to its end by `receive` and hand it to `keep`. Raises as that does, and as `take_file`."""
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        shown = repr(content_type[:80]) if content_type else "none"
        message = f"The content type of the request is {shown}: send 'content-type: multipart/form-data'."
        raise ApiError(415, message, code="unsupported_media_type")
    limits: dict[str, Any] = {"max_files": 2, "max_fields": _MAX_PARTS, "max_part_size": _MAX_FIELD_BYTES}
    try:
        async with Request(request.scope, receive).form(**limits) as form:
            return await keep(form)
    except (HTTPException, FormParserError) as error:
        why = str(error.detail if isinstance(error, HTTPException) else error).rstrip(".")
        raise invalid_request(f"The request body is not a valid form: {why}.", code="invalid_form") from None


async def _keep(gateway: Gateway, owner: Owner, form: FormData, read: ReadForm) -> File:
    file, purpose, keep_s = read(form)
    check_size(file.size or 0, gateway.config.retention.max_file_bytes, "file")
    async with file_writer(gateway, owner, file, "file") as writer:
        file_id = await writer.finish()
        now = int(gateway.store.now())
        seconds = default_keep_s(gateway) if keep_s is None else keep_s
        expires_at = now + seconds if seconds else None
        name = safe_name(file.filename or "")
        async with gateway.store.transaction() as session:
            return await publish_file(session, file_id, filename=name, purpose=purpose, now=now, expires_at=expires_at)


@asynccontextmanager
async def file_writer(
    gateway: Gateway, owner: Owner, file: UploadFile, param: str, part_of: Upload | None = None
) -> AsyncGenerator[FileWriter, None]:
    """A form's file, written to its end. An error in the block leaves nothing of it. Raises `ApiError`: 413 that names
    `param`, its organisation would store more than it may."""
    try:
        async with FileWriter(gateway.store, owner, part_of=part_of) as writer:
            while data := await file.read(_PIECE_BYTES):
                await writer.write(data)
            yield writer
    except StorageFullError as error:
        raise storage_full(error, param, "Files with an expiry (expires_after) go by themselves.") from None


def openai_form(form: FormData) -> tuple[UploadFile, str, int | None]:
    file = file_field(form, "file", ("purpose",), _OPTIONAL)
    purpose = str(form["purpose"])
    check_purpose(purpose)
    expiry = _expiry(form.get("expires_after[anchor]"), form.get("expires_after[seconds]"))
    return file, purpose, None if expiry is None else expiry.seconds


def file_field(form: FormData, name: str, required: Collection[str] = (), optional: Collection[str] = ()) -> UploadFile:
    """The file of that name in a form, which has these plain fields besides, each once. Raises `ApiError`: 400."""
    names = [each for each, _ in form.multi_items()]
    for each in names:
        if each not in (name, *required, *optional):
            shown = each[:80]
            raise invalid_request(f"Unrecognized request argument supplied: {shown}", shown, "unknown_parameter")
        if names.count(each) > 1:
            raise invalid_request(f"{each!r} may be given once only.", each)
        if isinstance(form[each], UploadFile) != (each == name):
            kind = "a file with a name, not a plain field" if each == name else "a plain field, not a file"
            raise invalid_request(f"{each!r} must be {kind}.", each)
    for each in (name, *required):
        if each not in form:
            raise invalid_request(f"Missing required parameter: {each}", each, "missing_required_parameter")
    file = form[name]
    assert isinstance(file, UploadFile)
    return file


def check_size(size: int, max_bytes: int, param: str) -> None:
    """Refuse a file that is too large: 413."""
    if size > max_bytes:
        message = f"The file is larger than {max_bytes} bytes (the server's retention.max_file_bytes)."
        raise ApiError(413, message, code="request_too_large", param=param)


def check_purpose(purpose: str) -> None:
    """Refuse what files are not for: 400."""
    if purpose == "vision":
        why = "Files of purpose 'vision' are not served: the models here read no images."
        raise invalid_request(why, "purpose", "unsupported_value")
    if purpose not in PURPOSES:
        raise invalid_request(f"Invalid value for 'purpose': it must be one of {', '.join(PURPOSES)}.", "purpose")


def default_keep_s(gateway: Gateway) -> int | None:
    """Seconds that a file is kept which does not say so itself; None: for ever."""
    days = gateway.config.retention.files_days
    return days and days * _DAY_S


def _expiry(anchor: object, seconds: object) -> FileExpiry | None:
    if anchor is None and seconds is None:
        return None
    try:
        return FileExpiry.model_validate({"anchor": anchor, "seconds": whole_number(seconds)})
    except ValidationError as error:
        wrong = error.errors()[0]
        where = f"expires_after[{wrong['loc'][0]}]"
        raise invalid_request(f"Invalid value for {where!r}: {wrong['msg']}", where) from None


def whole_number(given: object) -> object:
    """A field of a form that is a number, as one."""
    is_number = isinstance(given, str) and given.isascii() and given.isdecimal() and len(given) < 10
    return int(given) if isinstance(given, str) and is_number else given


def describe_file(file: File) -> FileObject:
    return FileObject(
        id=file.id,
        bytes=file.size,
        created_at=file.created_at,
        filename=file.filename,
        purpose=file.purpose,
        expires_at=msgspec.UNSET if file.expires_at is None else file.expires_at,
    )


def safe_name(filename: str) -> str:
    """Without folders and without what cannot be printed."""
    name = "".join(char for char in filename.replace("\\", "/").rpartition("/")[2] if char.isprintable())
    return name[:_MAX_NAME_CHARS] or "file"
