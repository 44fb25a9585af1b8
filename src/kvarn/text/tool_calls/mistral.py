"""Calls as Mistral's models write them."""

from __future__ import annotations

import hashlib
import re
import secrets
import string

from kvarn.text.tool_calls.base import ToolCallParser, Waiting

_ID_LENGTH = 9
_NAMED = re.compile(r"\s*+([\w.-]++)\s*+(?:\[CALL_ID\]\s*[\w-]++\s*+)?(?:\[ARGS\])?\s*+(?=\{)")
_NAMED_SO_FAR = re.compile(r"[\s\w.\[\]-]*")


class MistralParser(ToolCallParser):
    """Reads both forms: a list of objects, and since 2025 a tag for each call.

    [TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "now", "arguments": {}}]
    [TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}[TOOL_CALLS]now[ARGS]{}
    """

    tags = ("[TOOL_CALLS]",)

    def _calls_at(self, begin: int) -> Waiting[bool]:
        place = yield from self._next(begin)
        if place is None:
            return False
        if self._held[place] == "[":
            return (yield from self._json_list(place))
        found = yield from self._named(begin, _NAMED, _NAMED_SO_FAR)
        if found is not None:
            yield from self._call(found[1], found.end())
        return found is not None


def mistral_call_id() -> str:
    """Nine letters and digits: Mistral's templates refuse any other id."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(_ID_LENGTH))


def mistral_shown_id(call_id: str) -> str:
    """An id as the template takes it. One of another server's conversation becomes one that is always the same."""
    if len(call_id) == _ID_LENGTH and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:_ID_LENGTH]
