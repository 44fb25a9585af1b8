"""Taking a file: a form whose file goes into the database while it comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from pydantic import ValidationError

from kvarn.gateway.multipart import Mark, MultipartReader, Part
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

PURPOSES = ("batch", "user_data", "assistants", "evals", "fine-tune")
"""What a client may say a file is for. Of these only `batch` means something to the server yet."""

_MAX_FIELD_BYTES = 4096
_MAX_NAME_CHARS = 255
_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
_DAY_S = 24 * 3600
_EXPIRY = "Files with an expiry (expires_after) go by themselves."


class FileForm:
    """The form of an upload, filled in as its parts come. The file itself goes to the writer."""

    def __init__(self, writer: FileWriter, max_bytes: int) -> None:
        self.filename: str | None = None
        self._writer = writer
        self._max_bytes = max_bytes
        self._fields: dict[str, bytes] = {}
        self._part: Part | None = None

    async def take(self, event: Part | bytes | Mark) -> None:
        """The next event of the form.

        Raises:
            ApiError: 400 that names the field, or 413 for a file that is too large.
            StoreAwayError: The file cannot be written.
        """
        if isinstance(event, Part):
            self._begin(event)
        elif isinstance(event, bytes):
            await self._add(event)

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

    def _begin(self, part: Part) -> None:
        self._part = part
        if part.name == "file":
            if self.filename is not None:
                raise invalid_request("'file' may be given once only.", "file")
            if part.filename is None:
                raise invalid_request("'file' must be a file with a name, not a plain field.", "file")
            self.filename = _safe_name(part.filename)
            return
        if part.name not in _FIELDS:
            name = part.name[:80]
            raise invalid_request(f"Unrecognized request argument supplied: {name}", name, "unknown_parameter")
        if part.name in self._fields:
            raise invalid_request(f"{part.name!r} may be given once only.", part.name)
        self._fields[part.name] = b""

    async def _add(self, data: bytes) -> None:
        assert self._part is not None
        name = self._part.name
        if name == "file":
            if self._writer.size + len(data) > self._max_bytes:
                raise _too_large(self._max_bytes)
            await self._writer.write(data)
            return
        self._fields[name] += data
        if len(self._fields[name]) > _MAX_FIELD_BYTES:
            raise invalid_request(f"{name!r} is longer than {_MAX_FIELD_BYTES} bytes.", name)

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
    reader = MultipartReader(content_type)
    retention = gateway.config.retention
    writer = FileWriter(gateway.store, owner, retention.max_stored_bytes)
    form = FileForm(writer, retention.max_file_bytes)
    try:
        async with aclosing(body) as chunks:
            async for chunk in chunks:
                for event in reader.feed(chunk):
                    await form.take(event)
        reader.close()
        return await _keep(gateway, form, writer)
    except (ApiError, StorageFullError) as error:
        await writer.discard()
        told = error if isinstance(error, ApiError) else storage_full(error, "file", _EXPIRY)
        # The body may not have been read to its end: the client shall see the answer all the same.
        raise BodyRefusedError(told.status, told.message, type=told.type, code=told.code, param=told.param) from None
    except BaseException:
        await writer.discard()
        raise


async def _keep(gateway: Gateway, form: FileForm, writer: FileWriter) -> FileObject:
    if form.filename is None:
        raise _missing("file")
    purpose, expiry = form.purpose, form.expiry
    file_id = await writer.finish()
    now = int(gateway.store.now())
    days = gateway.config.retention.files_days
    seconds = expiry.seconds if expiry is not None else days and days * _DAY_S
    async with gateway.store.transaction() as session:
        file = await publish_file(
            session,
            file_id,
            filename=form.filename,
            purpose=purpose,
            now=now,
            expires_at=now + seconds if seconds else None,
        )
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


def _missing(name: str) -> ApiError:
    return invalid_request(f"Missing required parameter: {name}", name, "missing_required_parameter")


def _too_large(max_bytes: int) -> ApiError:
    message = f"The file is larger than {max_bytes} bytes (the server's retention.max_file_bytes)."
    return ApiError(413, message, code="request_too_large", param="file")
