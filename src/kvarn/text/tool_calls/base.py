"""Base class of the parsers of all formats.

A parser is written as a generator: it reads what has come, gives out what is certain, and yields where it must wait
for more. `self._held` is what has come and is not given out; `self._final` says that no more will come.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, ClassVar, TypeVar

from kvarn.text.stop_strings import overlap
from kvarn.text.tool_calls.events import TextDelta, ToolCallArguments, ToolCallStart, ToolEvent, merged, new_call_id
from kvarn.text.tool_calls.json_scan import Head, HeadState, JsonScan, read_head, whole_call

T = TypeVar("T")
Waiting = Generator[None, None, T]
"""Reads on, yielding wherever it has to wait, and comes to a T."""

_SPACE = re.compile(r"\s*")
LONGEST_NAME = 256
"""Characters within which a call's name must stand, so that nothing is held for long that is not one."""


class ToolCallParser(ABC):
    """Splits a stream of text into text and tool calls. However the text is split, the same comes out. A text that only
    looks like a call is text. White space around calls is dropped, nothing else is lost.

    `names` are those that may be called (None: any). `opening` is the beginning of a call in the prompt: the text goes
    on from there, and it is never given out as text. After `max_calls` the parser is satisfied. `parameters`: the JSON
    schema of each function's, for formats that write strings without quotes.
    """

    tags: ClassVar[tuple[str, ...]] = ()
    """Any of them begins calls."""

    def __init__(
        self,
        names: Collection[str] | None = None,
        *,
        opening: str = "",
        max_calls: int | None = None,
        parameters: Mapping[str, Mapping[str, Any]] | None = None,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._names = names
        self._max_calls = max_calls
        self._parameters = parameters or {}
        self._new_id = new_id
        self._held = opening
        self._unspoken = len(opening)
        self._forced = bool(opening)
        self._final = False
        self.is_open = False
        """Whether the arguments of the last call have begun and are not whole."""
        self._calls = 0
        self._after_call = False  # whether only white space has followed the last call
        self._events: list[ToolEvent] = []
        self._machine = self._parse()

    @property
    def satisfied(self) -> bool:
        """Whether it has all the calls it was asked for: nothing more will be given out."""
        return self._max_calls is not None and self._calls >= self._max_calls and self._after_call

    def push(self, text: str) -> list[ToolEvent]:
        self._held += text
        return self._go_on()

    def flush(self, *, cut_off: bool = False) -> list[ToolEvent]:
        """Give out the text that was held back, when no more will come. Where the answer is `cut_off` it may be the
        beginning of a call: only white space is given out then."""
        if cut_off:
            held, self._held = self._held, ""
            if held.isspace() and not self.is_open:
                self._give(held)
            return self._taken()
        self._final = True
        return self._go_on()

    def _go_on(self) -> list[ToolEvent]:
        next(self._machine, None)
        if self.satisfied:
            self._held = ""
        return self._taken()

    def _taken(self) -> list[ToolEvent]:
        events, self._events = self._events, []
        return merged(events)

    def _parse(self) -> Waiting[None]:
        """Read the answer from its beginning to its end: what follows a tag is calls, or it is text, tag included."""
        while tag := (yield from self._text_up_to(*self.tags)):
            begin = self._held.index(tag) + len(tag)
            if not (yield from self._calls_at(begin)):
                self._give(self._held[:begin])
                self._drop(begin)
            elif self.satisfied:
                return

    @abstractmethod
    def _calls_at(self, begin: int) -> Waiting[bool]:
        """Read the calls behind a tag; False, and nothing is given out, where there are none."""

    # What is given out.

    def _give(self, text: str) -> None:
        """Give out text. What of it stands in the prompt is left out, and so is white space after a call."""
        if self._unspoken:
            left_out = min(self._unspoken, len(text))
            self._unspoken -= left_out
            text = text[left_out:]
        if self._after_call:
            text = text.lstrip()
        if text:
            self._after_call = False
            self._events.append(TextDelta(text))

    def _start(self, name: str) -> None:
        self.is_open = True
        self._unspoken = 0
        self._after_call = False
        self._events.append(ToolCallStart(self._calls, self._new_id(), name))

    def _argue(self, delta: str) -> None:
        if delta:
            self._events.append(ToolCallArguments(self._calls, delta))

    def _end_call(self) -> None:
        self._calls += 1
        self._after_call = True

    # What is read.

    def _drop(self, count: int) -> None:
        self._held = self._held[count:]

    def _next(self, begin: int = 0) -> Waiting[int | None]:
        """Position of the next character that is no space, from `begin` on; None at the end."""
        place = begin
        while True:
            space = _SPACE.match(self._held, place)
            assert space is not None
            place = space.end()
            if place < len(self._held):
                return place
            if self._final:
                return None
            yield

    def _text_up_to(self, *tags: str) -> Waiting[str]:
        """Give out the text before the first of `tags`, and return it; what is held then begins with it, or with the
        space before it. Empty at the end."""
        while not (found := [(place, tag) for tag in tags if (place := self._held.find(tag)) >= 0]):
            certain = len(self._held) - max(overlap(self._held, tag) for tag in tags)
            end = len(self._held) if self._final else len(self._held[:certain].rstrip())
            self._give(self._held[:end])
            self._drop(end)
            if self._final:
                return ""
            yield
        start, tag = min(found)
        end = len(self._held[:start].rstrip())
        self._give(self._held[:end])
        self._drop(end)
        return tag

    def _comes(self, tag: str, begin: int = 0) -> Waiting[int | None]:
        """Position behind `tag`, if it comes next, perhaps behind white space."""
        while True:
            rest = self._held[begin:].lstrip()
            if rest.startswith(tag):
                return len(self._held) - len(rest) + len(tag)
            if self._final or not tag.startswith(rest):
                return None
            yield

    def _skip(self, tag: str) -> Waiting[None]:
        """Pass over `tag`, or the part of it that came before the end, where it comes next."""
        end = yield from self._comes(tag)
        if end is not None:
            self._drop(end)
        elif self._final and tag.startswith(self._held.lstrip()):
            self._held = ""

    def _named(
        self, begin: int, pattern: re.Pattern[str], so_far: re.Pattern[str], longest: int = LONGEST_NAME
    ) -> Waiting[re.Match[str] | None]:
        """Match of the head of a call at `begin`, whose first group is the name; None where there is none.

        `so_far` matches what may yet become such a head, with the name in a group if that shall be looked at.
        """
        end = begin + longest
        while (found := pattern.match(self._held, begin, end)) is None:
            begun = so_far.fullmatch(self._held, begin)
            if self._final or len(self._held) >= end or begun is None:
                return None
            if self._names is not None and begun.re.groups:
                name = begun[1] or ""
                if not any(each.startswith(name) for each in self._names):
                    return None
            yield
        return found if self._names is None or found[1] in self._names else None

    def _call(self, name: str, arguments: int) -> Waiting[None]:
        """Read a call whose JSON arguments stand at a position."""
        self._start(name)
        self._drop(arguments)
        yield from self._json_arguments()
        self._end_call()

    def _json_call(self, begin: int, *, needs_arguments: bool = False) -> Waiting[bool]:
        """Read the call whose object stands at `begin`; False, and nothing is given out, where it is none."""
        while (head := read_head(self._held, begin, self._names)) is HeadState.OPEN:
            if self._final:
                return False
            yield
        if head is HeadState.WHOLE:
            return (yield from self._whole_json_call(begin, needs_arguments))
        if not isinstance(head, Head):
            return False
        self._start(head.name)
        self._drop(head.arguments)
        yield from self._json_arguments()
        yield from self._rest_of_object()
        self._end_call()
        return True

    def _json_list(self, begin: int) -> Waiting[bool]:
        """Read the list of calls whose bracket stands at `begin`; False where it does not begin with a call."""
        called, mark = False, begin
        while not self.satisfied:
            place = yield from self._next(mark + 1)
            if place is None or not (yield from self._json_call(place)):
                break
            called = True
            following = None if self.satisfied else (yield from self._next())
            if following is None or self._held[following] not in ",]":
                break
            if self._held[following] == "]":
                self._drop(following + 1)
                break
            mark = following
        return called

    def _whole_json_call(self, begin: int, needs_arguments: bool) -> Waiting[bool]:
        scan, read = JsonScan(), begin
        while (end := scan.find_end(self._held, read)) is None:
            read = len(self._held)
            if self._final:
                return False
            yield
        call = whole_call(self._held[begin:end], self._names, needs_arguments=needs_arguments)
        if call is None:
            return False
        self._start(call[0])
        self._argue(call[1])
        self.is_open = False
        self._drop(end)
        self._end_call()
        return True

    def _json_arguments(self) -> Waiting[None]:
        """Give out the object that comes next, as it comes and as the model writes it."""
        scan = JsonScan()
        while True:
            end = scan.find_end(self._held)
            self._argue(self._held[:end])
            self._held = "" if end is None else self._held[end:]
            self.is_open = end is None
            if end is not None or self._final:
                return
            yield

    def _rest_of_object(self) -> Waiting[None]:
        """Pass over what follows the arguments in the call's object."""
        place = yield from self._next()
        if place is None or self._held[place] not in ",}":
            return
        scan = JsonScan(depth=1)
        while (end := scan.find_end(self._held)) is None:
            self._held = ""
            if self._final:
                return
            yield
        self._drop(end)
