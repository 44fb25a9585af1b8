"""Calls as GLM 4.5 and later write them: a tag for each key and each value."""

from __future__ import annotations

import re

from kvarn.text.tool_calls.argument_values import read_value, without_arguments
from kvarn.text.tool_calls.base import ToolCallParser, Waiting
from kvarn.text.tool_calls.json_scan import to_json

_CLOSE = "</tool_call>"
_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_NAME = re.compile(rf"\s*+([\w.-]++)\s*+(?={_KEY}|{_CLOSE})")
_NAME_SO_FAR = re.compile(r"\s*+[\w.-]*+\s*+(?:<[/\w]*+)?+")
_PAIR = re.compile(rf"\s*{_KEY}(.*?){_KEY_END}\s*{_VALUE}(.*?){_VALUE_END}", re.DOTALL)


class GlmParser(ToolCallParser):
    """Reads arguments into a JSON object, given out when it is complete: of those with one name the last one counts.
    Strings stand without quotes: see `read_value`.

    <tool_call>add
    <arg_key>a</arg_key>
    <arg_value>1</arg_value>
    </tool_call>
    """

    tags = ("<tool_call>",)

    def _calls_at(self, begin: int) -> Waiting[bool]:
        found = yield from self._named(begin, _NAME, _NAME_SO_FAR)
        if found is None:
            return False
        self._start(found[1])
        self._drop(found.end())
        yield from self._arguments(found[1])
        self._end_call()
        return True

    def _arguments(self, name: str) -> Waiting[None]:
        """Read up to the closing tag. A call that was forced has no arguments where its function takes none."""
        values: dict[str, str] = {}
        empty = self._forced and name in self._parameters and without_arguments(self._parameters[name])
        while (yield from self._comes(_KEY)) is not None:
            while (found := _PAIR.match(self._held)) is None and not self._final:
                yield
            if found is None:
                self._held = ""
                self._argue(_begun(values) if values else "")
                return
            key = found[1].strip()
            if not empty:
                values[key] = self._value(name, key, found[2])
            self._drop(found.end())
        self._argue(_begun(values) + "}")
        self.is_open = False
        if (end := (yield from self._comes(_CLOSE))) is not None:
            self._drop(end)

    def _value(self, name: str, key: str, text: str) -> str:
        schema = self._parameters.get(name, {})
        properties = schema.get("properties")
        return to_json(read_value(text, properties.get(key) if isinstance(properties, dict) else None, schema))


def _begun(values: dict[str, str]) -> str:
    return "{" + ", ".join(f"{to_json(key)}: {value}" for key, value in values.items())
