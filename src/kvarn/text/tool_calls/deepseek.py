"""Calls as DeepSeek's V3, R1 and V3.1 write them."""

from __future__ import annotations

import re

from kvarn.text.tool_calls.base import ToolCallParser, Waiting

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_FENCE = "```"
_NAMED = re.compile(
    rf"\s*+(?:function{SEPARATOR}(?=\w))?+([\w.-]++)\s*+(?:{SEPARATOR})?+\s*+(?:{_FENCE}json)?+\s*+(?=\{{)"
)
_NAMED_SO_FAR = re.compile(r"[\s\w.<｜▁>`-]*")


class DeepseekParser(ToolCallParser):
    """Reads both forms: a name and a fenced object, and since V3.1 a name and the object itself.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add
    ```json
    {"a": 1, "b": 2}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1, "b": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
    """

    tags = (CALLS_BEGIN,)

    def _calls_at(self, begin: int) -> Waiting[bool]:
        called = False
        while not self.satisfied:
            place = yield from self._comes(CALL_BEGIN, 0 if called else begin)
            found = None if place is None else (yield from self._named(place, _NAMED, _NAMED_SO_FAR))
            if found is None:
                break
            called = True
            yield from self._call(found[1], found.end())
            if not self.satisfied:
                yield from self._skip(_FENCE)
                yield from self._skip(CALL_END)
        if called and not self.satisfied:
            yield from self._skip(CALLS_END)
        return called
