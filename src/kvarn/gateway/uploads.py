"""Uploads: a form (multipart/form-data, RFC 7578) whose file goes into the database while it comes.

Starlette's own form reader writes files to the disk first, and bounds neither them nor the time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from kvarn.gateway.state import Gateway
from kvarn.serving.errors import storage_full
from kvarn.serving.held_bytes import BodyRefusedError
from kvarn.store.errors import StorageFullError
from kvarn.store.models import File
from kvarn.store.owner import Owner
from kvarn.store.repositories.files.file_writer import FileWriter
from kvarn.store.repositories.files.files import publish_file
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.files import FileExpiry, FileObject

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

PURPOSES = ("batch", "user_data", "assistants", "evals", "fine-tune")
"""What a client may say a file is for. Of these only `batch` means something to the server yet."""

_MAX_PARTS = 32
_MAX_FIELD_BYTES = 4096
_MAX_NAME_CHARS = 255
_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
_DAY_S = 24 * 3600
_EXPIRY = "Files with an expiry (expires_after) go by themselves."


class UploadForm:
    """The form of an upload, read as it comes. Nothing of the file is gathered here.

    Args:
        content_type: Of the request.
        max_bytes: Size of the file at most.

    Raises:
        ApiError: 415, the body is no form; 400, it has no boundary.
    """

    def __init__(self, content_type: str, max_bytes: int) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data":
            shown = repr(content_type[:80]) if content_type else "none"
            message = f"The content type of the request is {shown}: send 'content-type: multipart/form-data'."
            raise ApiError(415, message, code="unsupported_media_type")
        boundary = options.get(b"boundary")
        if not boundary:
            raise _broken("its content type names no boundary")
        self.filename: str | None = None
        self._max_bytes = max_bytes
        self._size = 0
        self._fields: dict[str, bytes] = {}
        self._file_data: list[bytes] = []
        self._parts = 0
        self._part = ""
        """Name of the part that is being read."""
        self._header = (bytearray(), bytearray())
        self._disposition = ""
        self._ended = False
        try:
            self._parser = MultipartParser(boundary, self._callbacks())
        except FormParserError as error:
            raise _broken(str(error)) from None

    def feed(self, data: bytes) -> list[bytes]:
        """Read on; returns what `data` holds of the file.

        Raises:
            ApiError: 400 that says what is wrong with the form, or 413 for a file that is too large.
        """
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _broken(str(error)) from None
        file_data, self._file_data = self._file_data, []
        return file_data

    def close(self) -> None:
        """Make sure that the form is whole, and has a file. Raises as `feed` does."""
        if not self._ended:
            raise _broken("it ends before its last boundary")
        if self.filename is None:
            raise _missing("file")

    @property
    def purpose(self) -> str:
        """What the file is for. Raises an `ApiError` where the form does not say, or says what is not served."""
        purpose = self._text("purpose")
        if purpose is None:
            raise _missing("purpose")
        if purpose == "vision":
            why = "Files of purpose 'vision' are not served: the models here read no images."
            raise invalid_request(why, "purpose", "unsupported_value")
        if purpose not in PURPOSES:
            raise invalid_request(f"Invalid value for 'purpose': it must be one of {', '.join(PURPOSES)}.", "purpose")
        return purpose

    @property
    def expiry(self) -> FileExpiry | None:
        """When the file goes by itself. Raises as `purpose` does."""
        anchor, seconds = self._text("expires_after[anchor]"), self._text("expires_after[seconds]")
        if anchor is None and seconds is None:
            return None
        given: dict[str, Any] = {"anchor": anchor, "seconds": seconds}
        if seconds is not None and seconds.isascii() and seconds.isdecimal() and len(seconds) < 10:
            given["seconds"] = int(seconds)
        try:
            return FileExpiry.model_validate(given)
        except ValidationError as error:
            wrong = error.errors()[0]
            where = f"expires_after[{wrong['loc'][0]}]"
            raise invalid_request(f"Invalid value for {where!r}: {wrong['msg']}", where) from None

    def _callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin_part,
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": lambda data, start, end: self._add(data[start:end]),
            "on_end": self._end,
        }

    def _begin_part(self) -> None:
        self._parts += 1
        self._disposition = ""
        if self._parts > _MAX_PARTS:
            raise _broken(f"it has more than {_MAX_PARTS} parts")

    def _end_header(self) -> None:
        name, value = self._header
        if bytes(name).strip().lower() == b"content-disposition":
            self._disposition = value.decode("latin-1")
        name.clear()
        value.clear()

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise _broken("a part has no name")
        name = self._part = _decode(options[b"name"])
        if name == "file":
            if self.filename is not None:
                raise invalid_request("'file' may be given once only.", "file")
            if b"filename" not in options:
                raise invalid_request("'file' must be a file with a name, not a plain field.", "file")
            self.filename = _safe_name(_decode(options[b"filename"]))
        elif name not in _FIELDS:
            shown = name[:80]
            raise invalid_request(f"Unrecognized request argument supplied: {shown}", shown, "unknown_parameter")
        elif name in self._fields:
            raise invalid_request(f"{name!r} may be given once only.", name)
        else:
            self._fields[name] = b""

    def _add(self, data: bytes) -> None:
        name = self._part
        if name == "file":
            self._size += len(data)
            if self._size > self._max_bytes:
                message = f"The file is larger than {self._max_bytes} bytes (the server's retention.max_file_bytes)."
                raise ApiError(413, message, code="request_too_large", param="file")
            self._file_data.append(data)
            return
        self._fields[name] += data
        if len(self._fields[name]) > _MAX_FIELD_BYTES:
            raise invalid_request(f"{name!r} is longer than {_MAX_FIELD_BYTES} bytes.", name)

    def _end(self) -> None:
        self._ended = True

    def _text(self, name: str) -> str | None:
        value = self._fields.get(name)
        return None if value is None else value.decode("utf-8", "replace")


async def take_file(gateway: Gateway, owner: Owner, content_type: str, body: AsyncGenerator[bytes, None]) -> FileObject:
    """Read an upload to its end and keep its file. Of one that is refused or cut short nothing is left.

    Raises:
        ApiError: The form cannot be taken as it is.
        StoreAwayError: The file cannot be written.
        ClientDisconnect: The client left in the middle.
    """
    retention = gateway.config.retention
    form = UploadForm(content_type, retention.max_file_bytes)
    writer = FileWriter(gateway.store, owner, retention.max_stored_bytes)
    try:
        async with aclosing(body) as chunks:
            async for chunk in chunks:
                for data in form.feed(chunk):
                    await writer.write(data)
        form.close()
        return await _publish(gateway, form, writer)
    except (ApiError, StorageFullError) as error:
        await writer.discard()
        refusal = error if isinstance(error, ApiError) else storage_full(error, "file", _EXPIRY)
        # The body may not have been read to its end: the client shall see the answer all the same.
        raise BodyRefusedError(
            refusal.status, refusal.message, type=refusal.type, code=refusal.code, param=refusal.param
        ) from None
    except BaseException:
        await writer.discard()
        raise


async def _publish(gateway: Gateway, form: UploadForm, writer: FileWriter) -> FileObject:
    purpose, expiry = form.purpose, form.expiry
    file_id = await writer.finish()
    now = int(gateway.store.now())
    days = gateway.config.retention.files_days
    seconds = expiry.seconds if expiry is not None else days and days * _DAY_S
    expires_at = now + seconds if seconds else None
    filename = form.filename or ""
    async with gateway.store.transaction() as session:
        file = await publish_file(session, file_id, filename=filename, purpose=purpose, now=now, expires_at=expires_at)
    return describe_file(file)


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
    name = "".join(char for char in filename.replace("\\", "/").rpartition("/")[2] if char.isprintable())
    return name[:_MAX_NAME_CHARS] or "file"


def _decode(value: bytes) -> str:
    return value.decode("utf-8", "replace").replace("\x00", "")


def _missing(name: str) -> ApiError:
    return invalid_request(f"Missing required parameter: {name}", name, "missing_required_parameter")


def _broken(why: str) -> ApiError:
    return invalid_request(f"The request body is not a valid form: {why}.", code="invalid_form")
