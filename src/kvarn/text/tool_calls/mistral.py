"""Calls as Mistral's models write them."""

from __future__ import annotations

import hashlib
import re
import secrets
import string

from kvarn.text.tool_calls.base import ToolCallParser, Waiting

_ID_LENGTH = 9
_TAG, _ARGS = "[TOOL_CALLS]", "[ARGS]"
_NAMED = re.compile(r"\s*+([\w.-]++)\s*+(?:\[CALL_ID\]\s*[\w-]++\s*+)?(?:\[ARGS\])?\s*+(?=\{)")
_NAMED_SO_FAR = re.compile(r"[\s\w.\[\]-]*")
_LONGEST_NAME = 256
"""Characters within which a call's name must stand, so that nothing is held for long that is not one."""


class MistralParser(ToolCallParser):
    """Reads both forms: a list of objects, and since 2025 a tag for each call.

    [TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "now", "arguments": {}}]
    [TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}[TOOL_CALLS]now[ARGS]{}
    """

    def _parse(self) -> Waiting[None]:
        while (yield from self._text_up_to(_TAG)):
            begin = self._held.index(_TAG) + len(_TAG)
            place = yield from self._next(begin)
            if place is None:
                called = False
            elif self._held[place] == "[":
                called = yield from self._json_list(place)
            else:
                called = yield from self._named(begin)
            if self.satisfied:
                return
            if not called:
                self._give(self._held[:begin])
                self._drop(begin)

    def _named(self, begin: int) -> Waiting[bool]:
        end = begin + _LONGEST_NAME
        while (found := _NAMED.match(self._held, begin, end)) is None:
            if self._final or len(self._held) >= end or _NAMED_SO_FAR.fullmatch(self._held, begin) is None:
                return False
            yield
        if self._names is not None and found[1] not in self._names:
            return False
        self._start(found[1])
        self._drop(found.end())
        yield from self._json_arguments()
        self._end_call()
        return True


def mistral_opening(name: str | None) -> str:
    """Text that begins a list of calls; see `hermes_opening`."""
    return f'{_TAG} [{{"name":' if name is None else f'{_TAG} [{{"name": "{name}", "arguments":'


def mistral_tagged_opening(name: str | None) -> str:
    """Text that begins a call with a tag of its own; see `hermes_opening`."""
    return _TAG if name is None else f"{_TAG}{name}{_ARGS}"


def mistral_call_id() -> str:
    """Nine letters and digits: Mistral's templates refuse any other id."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(_ID_LENGTH))


def mistral_shown_id(call_id: str) -> str:
    """An id as the template takes it. One of another server's conversation becomes one that is always the same."""
    if len(call_id) == _ID_LENGTH and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:_ID_LENGTH]
