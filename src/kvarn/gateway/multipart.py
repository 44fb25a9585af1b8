"""Forms with files (multipart/form-data, RFC 7578), taken apart as they come: nothing of a file is gathered here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from kvarn.wire.openai.errors import ApiError, invalid_request

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_MAX_PARTS = 32


@dataclass(frozen=True, slots=True)
class Part:
    """A field of the form begins."""

    name: str
    filename: str | None
    """None for a field that is no file."""


class Mark(Enum):
    """What happens between the data."""

    PART_END = "part end"


Event = Part | bytes | Mark


class MultipartReader:
    """Bytes of a body in, parts and their data out.

    Args:
        content_type: Of the request.

    Raises:
        ApiError: 415, the body is no form; 400, it has no boundary.
    """

    def __init__(self, content_type: str) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data":
            shown = repr(content_type[:80]) if content_type else "none"
            message = f"The content type of the request is {shown}: send 'content-type: multipart/form-data'."
            raise ApiError(415, message, code="unsupported_media_type")
        boundary = options.get(b"boundary")
        if not boundary:
            raise _broken("its content type names no boundary")
        self._events: list[Event] = []
        self._parts = 0
        self._header = (bytearray(), bytearray())
        self._disposition = b""
        self._ended = False
        try:
            self._parser = MultipartParser(boundary, self._callbacks())
        except FormParserError as error:
            raise _broken(str(error)) from None

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes.

        Raises:
            ApiError: 400 that says what is wrong with the form.
        """
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _broken(str(error)) from None
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Make sure that the form is whole. Raises as `feed` does."""
        if not self._ended:
            raise _broken("it ends before its last boundary")

    def _callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin_part,
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": lambda data, start, end: self._events.append(data[start:end]),
            "on_part_end": lambda: self._events.append(Mark.PART_END),
            "on_end": self._end,
        }

    def _begin_part(self) -> None:
        self._parts += 1
        self._disposition = b""
        if self._parts > _MAX_PARTS:
            raise _broken(f"it has more than {_MAX_PARTS} parts")

    def _end_header(self) -> None:
        name, value = self._header
        if bytes(name).strip().lower() == b"content-disposition":
            self._disposition = bytes(value)
        name.clear()
        value.clear()

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition.decode("latin-1"))
        if b"name" not in options:
            raise _broken("a part has no name")
        filename = options.get(b"filename")
        self._events.append(Part(_text(options[b"name"]), None if filename is None else _text(filename)))

    def _end(self) -> None:
        self._ended = True


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace").replace("\x00", "")


def _broken(why: str) -> ApiError:
    return invalid_request(f"The request body is not a valid form: {why}.", code="invalid_form")
