"""Uploads: a form (multipart/form-data, RFC 7578) whose file goes into the database.

Starlette parses the form, and keeps a file of more than a megabyte on the disk until it has come whole.
"""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Receive

from kvarn.gateway.state import Gateway
from kvarn.serving.errors import storage_full
from kvarn.store.errors import StorageFullError
from kvarn.store.models import File
from kvarn.store.owner import Owner
from kvarn.store.repositories.files import FileWriter, publish_file
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.files import FileExpiry, FileObject

PURPOSES = ("batch", "user_data", "assistants", "evals", "fine-tune")
"""What a client may say a file is for. Of these only `batch` means something to the server yet."""

_FIELDS = ("file", "purpose", "expires_after[anchor]", "expires_after[seconds]")
_MAX_PARTS = 32
_MAX_FIELD_BYTES = 64 * 1024
_MAX_NAME_CHARS = 255
_PIECE_BYTES = 256 * 1024
_DAY_S = 24 * 3600
_EXPIRY = "Files with an expiry (expires_after) go by themselves."


async def take_file(gateway: Gateway, owner: Owner, request: Request, receive: Receive) -> FileObject:
    """Read an upload to its end by `receive` and keep its file. Of one that is refused nothing is left.

    Raises:
        ApiError: The form cannot be taken as it is.
        StoreAwayError: The file cannot be written.
        ClientDisconnect: The client left in the middle.
    """
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        shown = repr(content_type[:80]) if content_type else "none"
        message = f"The content type of the request is {shown}: send 'content-type: multipart/form-data'."
        raise ApiError(415, message, code="unsupported_media_type")
    limits: dict[str, Any] = {"max_files": 2, "max_fields": _MAX_PARTS, "max_part_size": _MAX_FIELD_BYTES}
    try:
        async with Request(request.scope, receive).form(**limits) as form:
            return await _keep(gateway, owner, form)
    except (HTTPException, FormParserError) as error:
        why = str(error.detail if isinstance(error, HTTPException) else error).rstrip(".")
        raise invalid_request(f"The request body is not a valid form: {why}.", code="invalid_form") from None


async def _keep(gateway: Gateway, owner: Owner, form: FormData) -> FileObject:
    file, purpose, expiry = _check(form, gateway.config.retention.max_file_bytes)
    retention = gateway.config.retention
    writer = FileWriter(gateway.store, owner)
    try:
        while data := await file.read(_PIECE_BYTES):
            await writer.write(data)
        file_id = await writer.finish()
        now = int(gateway.store.now())
        seconds = expiry.seconds if expiry is not None else retention.files_days and retention.files_days * _DAY_S
        expires_at = now + seconds if seconds else None
        name = _safe_name(file.filename or "")
        async with gateway.store.transaction() as session:
            kept = await publish_file(session, file_id, filename=name, purpose=purpose, now=now, expires_at=expires_at)
    except StorageFullError as error:
        await writer.discard()
        raise storage_full(error, "file", _EXPIRY) from None
    except BaseException:
        await writer.discard()
        raise
    return describe_file(kept)


def _check(form: FormData, max_bytes: int) -> tuple[UploadFile, str, FileExpiry | None]:
    """The file, what it is for, and when it goes by itself."""
    names = [name for name, _ in form.multi_items()]
    for name in names:
        if name not in _FIELDS:
            shown = name[:80]
            raise invalid_request(f"Unrecognized request argument supplied: {shown}", shown, "unknown_parameter")
        if names.count(name) > 1:
            raise invalid_request(f"{name!r} may be given once only.", name)
        if isinstance(form[name], UploadFile) != (name == "file"):
            kind = "a file with a name, not a plain field" if name == "file" else "a plain field, not a file"
            raise invalid_request(f"{name!r} must be {kind}.", name)
    for name in ("file", "purpose"):
        if name not in form:
            raise invalid_request(f"Missing required parameter: {name}", name, "missing_required_parameter")
    file, purpose = form["file"], str(form["purpose"])
    assert isinstance(file, UploadFile)
    if (file.size or 0) > max_bytes:
        message = f"The file is larger than {max_bytes} bytes (the server's retention.max_file_bytes)."
        raise ApiError(413, message, code="request_too_large", param="file")
    if purpose == "vision":
        why = "Files of purpose 'vision' are not served: the models here read no images."
        raise invalid_request(why, "purpose", "unsupported_value")
    if purpose not in PURPOSES:
        raise invalid_request(f"Invalid value for 'purpose': it must be one of {', '.join(PURPOSES)}.", "purpose")
    return file, purpose, _expiry(form.get("expires_after[anchor]"), form.get("expires_after[seconds]"))


def _expiry(anchor: object, seconds: object) -> FileExpiry | None:
    if anchor is None and seconds is None:
        return None
    if isinstance(seconds, str) and seconds.isascii() and seconds.isdecimal() and len(seconds) < 10:
        seconds = int(seconds)
    try:
        return FileExpiry.model_validate({"anchor": anchor, "seconds": seconds})
    except ValidationError as error:
        wrong = error.errors()[0]
        where = f"expires_after[{wrong['loc'][0]}]"
        raise invalid_request(f"Invalid value for {where!r}: {wrong['msg']}", where) from None


def describe_file(file: File) -> FileObject:
    """A file in OpenAI's shape."""
    return FileObject(
        id=file.id,
        bytes=file.size,
        created_at=file.created_at,
        filename=file.filename,
        purpose=file.purpose,
        expires_at=msgspec.UNSET if file.expires_at is None else file.expires_at,
    )


def _safe_name(filename: str) -> str:
    """Without folders and without what cannot be printed."""
    name = "".join(char for char in filename.replace("\\", "/").rpartition("/")[2] if char.isprintable())
    return name[:_MAX_NAME_CHARS] or "file"
