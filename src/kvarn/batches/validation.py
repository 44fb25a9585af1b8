"""Reading the input of a batch: one request a line, each checked for its shape."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any

import msgspec

from kvarn.store.repositories.batches.lines import Line
from kvarn.wire.openai.batches import BatchFault
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.parse import decode_body

MAX_FAULTS = 100
"""Faults of one input that are reported; after so many the rest is not read."""
MAX_CUSTOM_ID = 512
MAX_MODEL = 256

_FIELDS = ("custom_id", "method", "url", "body")
_BOM = b"\xef\xbb\xbf"


Answering = Callable[[str | None], str | None]
"""The model that answers a request, by the one that it names."""


class InputCheck:
    """Checks lines one after another, and remembers what is wrong with them. `answering` says which model a request
    needs."""

    def __init__(
        self, endpoint: str, max_lines: int, max_line_bytes: int, answering: Answering = lambda name: name
    ) -> None:
        self.faults: list[BatchFault] = []
        self.total = 0
        """Requests found, wrong ones among them."""
        self._endpoint = endpoint
        self._max_lines = max_lines
        self._max_line_bytes = max_line_bytes
        self._answering = answering
        self._custom_ids: set[str] = set()
        self._models: set[str | None] = set()

    @property
    def model(self) -> str | None:
        return next(iter(self._models)) if len(self._models) == 1 else None

    @property
    def hopeless(self) -> bool:
        """Whether nothing is gained by reading on."""
        return len(self.faults) >= MAX_FAULTS or self.total > self._max_lines

    def take(self, number: int, text: bytes) -> Line | None:
        """A line of the file; None for one that is empty, or wrong."""
        if not text.strip():
            return None
        self.total += 1
        if self.total > self._max_lines:
            why = f"The input has more than {self._max_lines} requests (the server's batches.max_lines)."
            self._add_fault("too_many_requests", why, None, number)
            return None
        if len(text) > self._max_line_bytes:
            why = f"The line is longer than {self._max_line_bytes} bytes (the server's batches.max_line_bytes)."
            self._add_fault("line_too_long", why, None, number)
            return None
        try:
            fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            decoded = decode_body(text)
        except (msgspec.DecodeError, ApiError, UnicodeDecodeError, RecursionError):
            self._add_fault("invalid_json_line", "This line is not parseable as valid JSON.", None, number)
            return None
        return self._check(fields, decoded, number)

    def end(self) -> None:
        if not self.total:
            self._add_fault("empty_file", "The input file holds no request.", None, None)

    def _check(self, fields: dict[str, msgspec.Raw], decoded: dict[str, Any], number: int) -> Line | None:
        before = len(self.faults)
        for name in _FIELDS:
            if name not in fields:
                why = f"Missing required parameter: '{name}'."
                self._add_fault("missing_required_parameter", why, name, number)
        for name in sorted(fields.keys() - set(_FIELDS)):
            self._add_fault("unknown_parameter", f"Unknown parameter: '{name[:80]}'.", name[:80], number)
        if len(self.faults) > before:
            return None
        custom_id, body = decoded["custom_id"], bytes(fields["body"])
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID or "\x00" in custom_id:
            why = f"The custom_id must be a string of 1 to {MAX_CUSTOM_ID} characters, none of them U+0000."
            self._add_fault("invalid_custom_id", why, "custom_id", number)
        elif custom_id in self._custom_ids:
            why = f"The custom_id '{custom_id[:80]}' for this line has already been used in this batch."
            self._add_fault("duplicate_custom_id", why, "custom_id", number)
        else:
            self._custom_ids.add(custom_id)
        if decoded["method"] != "POST":
            self._add_fault("invalid_method", "The method of every request must be 'POST'.", "method", number)
        if decoded["url"] != self._endpoint:
            why = f"The URL of every request must be the batch's endpoint, {self._endpoint!r}."
            self._add_fault("mismatched_url", why, "url", number)
        if not body.startswith(b"{"):
            self._add_fault("invalid_body", "The body of every request must be a JSON object.", "body", number)
        if len(self.faults) > before:
            return None
        model = self._answering(model_of(decoded["body"]))
        self._models.add(model)
        return Line(number, custom_id, body, model or "")

    def _add_fault(self, code: str, message: str, param: str | None, line: int | None) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(BatchFault(code=code, message=message, param=param, line=line))


def model_of(request: Mapping[str, Any]) -> str | None:
    """The model that a request names; None where it names none, or what cannot be the name of one. `request` is as
    `decode_body` reads it, also when it runs: of a key that stands in it twice, both see the same value."""
    name = request.get("model")
    return name if isinstance(name, str) and len(name) <= MAX_MODEL and "\x00" not in name else None


async def split_lines(chunks: AsyncIterator[bytes], max_line_bytes: int) -> AsyncGenerator[tuple[int, bytes], None]:
    """Numbered lines of a file, from 1, without their ends. Of a line that is too long only the beginning comes, long
    enough to tell: no more of it is held."""
    rest, number, cut = bytearray(), 1, max_line_bytes + 1
    first = True
    async for chunk in chunks:
        if first:
            chunk, first = chunk.removeprefix(_BOM), False
        *ended, last = chunk.split(b"\n")
        for part in ended:
            rest += part[: cut - len(rest)]
            yield number, bytes(rest).removesuffix(b"\r")
            rest.clear()
            number += 1
        rest += last[: cut - len(rest)]
    if rest:
        yield number, bytes(rest).removesuffix(b"\r")
