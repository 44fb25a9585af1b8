"""The tools of a response as functions of a chat, and the calls of a chat as items of a response.

A chat knows functions with one name and JSON arguments. So a function of a namespace is called `namespace__name` there,
and a tool whose input is plain text is a function with one argument, `input`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvarn.grammar.errors import GrammarError
from kvarn.grammar.lark_regex import MAX_GRAMMAR_CHARS, regex_of_lark
from kvarn.wire.openai.errors import invalid_request

INPUT = "input"
_MAX_NAME = 64
_HASH_CHARS = 8


@dataclass(frozen=True, slots=True)
class OfferedTool:
    tool: Mapping[str, Any]  # JSON as the response echoes it
    index: int
    """Place among the request's tools; those of one namespace share it."""
    namespace: str | None = None
    about: str = ""
    """Description of the namespace, on its first tool only."""
    lark_before: int = 0
    """Characters of the Lark grammars of the tools before it."""

    @property
    def is_custom(self) -> bool:
        return bool(self.tool["type"] == "custom")

    @property
    def name(self) -> str:
        return str(self.tool["name"])

    @property
    def label(self) -> str:
        inside = "" if self.namespace is None else f" of the namespace {self.namespace!r}"
        return f"the {self.tool['type']} tool {self.name!r}{inside} ('tools[{self.index}]')"

    @property
    def chat_name(self) -> str:
        return chat_name(self.name, self.namespace)


def chat_name(name: str, namespace: str | None) -> str:
    """The model's name of a tool; where it would be too long, its end is a digest."""
    if namespace is None:
        return name
    whole = f"{namespace}{'' if namespace.endswith('__') else '__'}{name}"
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_HASH_CHARS]
    return whole if len(whole) <= _MAX_NAME else f"{whole[: _MAX_NAME - _HASH_CHARS - 1]}_{digest}"


def offered_tools(tools: Sequence[Mapping[str, Any]]) -> list[OfferedTool]:
    """Flatten tools as a response echoes them: namespaces give their members."""
    offered: list[OfferedTool] = []
    lark_chars = 0
    for tool in _flat(tools):
        offered.append(replace(tool, lark_before=lark_chars))
        form = tool.tool.get("format") or {}
        lark_chars += len(form["definition"]) if form.get("syntax") == "lark" else 0
    return offered


def check_chat_names(offered: Sequence[OfferedTool]) -> None:
    """Raise `ApiError` 400 where two tools have one name for the model. The same tool twice is one tool."""
    first: dict[str, OfferedTool] = {}
    for tool in offered:
        other = first.setdefault(tool.chat_name, tool)
        if (other.name, other.namespace, other.is_custom) != (tool.name, tool.namespace, tool.is_custom):
            names = f"{other.label} and {tool.label}"
            message = f"The model would know {names} by one name, {tool.chat_name!r}: rename one of them."
            raise invalid_request(message, f"tools[{tool.index}]")


def _flat(tools: Sequence[Mapping[str, Any]]) -> Iterator[OfferedTool]:
    for index, tool in enumerate(tools):
        if tool["type"] == "namespace":
            for number, each in enumerate(tool["tools"]):
                yield OfferedTool(each, index, tool["name"], "" if number else tool["description"])
        elif tool["type"] in ("function", "custom"):  # what the server runs is offered by its provider
            yield OfferedTool(tool, index)


def chat_tool(offered: OfferedTool) -> tuple[dict[str, Any], str | None]:
    """A tool as a function of a chat, and what of it cannot be enforced."""
    tool = offered.tool
    function: dict[str, Any] = {"name": offered.chat_name}
    if not offered.is_custom:
        shown = "\n\n".join(filter(None, (offered.about, tool.get("description"))))
        fields = {"description": shown or None, "parameters": tool.get("parameters"), "strict": tool.get("strict")}
        function |= {name: value for name, value in fields.items() if value is not None}
        return {"type": "function", "function": function}, None
    described, text, warning = [offered.about, tool.get("description")], {"type": "string"}, None
    form = tool.get("format") or {}
    if form.get("type") == "grammar":
        described.append(f"The input must match this {form['syntax']} grammar:\n{form['definition']}")
        try:
            is_lark = form["syntax"] == "lark"
            text["pattern"] = f"^(?:{_lark(form['definition'], offered) if is_lark else form['definition']})$"
            function["strict"] = True
        except GrammarError as error:
            warning = f"the grammar of {offered.name!r} is not enforced: {error}"
    schema = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
    shown = "\n\n".join(filter(None, described))
    function |= {"parameters": schema, **({"description": shown} if shown else {})}
    return {"type": "function", "function": function}, warning


def _lark(definition: str, offered: OfferedTool) -> str:
    if offered.lark_before + len(definition) > MAX_GRAMMAR_CHARS:
        raise GrammarError(f"the Lark grammars of all tools are longer than {MAX_GRAMMAR_CHARS} characters")
    return regex_of_lark(definition)


_BEGIN = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_MAX_BEGIN_CHARS = 64
"""Characters without a beginning after which none is looked for: each look reads all that has come."""
_STRING = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*')
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")


class CustomInput:
    """Reads `{"input": "..."}` piece by piece; whatever else a model writes is its input as it stands."""

    def __init__(self) -> None:
        self._arguments = ""
        self._read = 0
        self._begun = False
        self._ended = False

    def take(self, arguments: str) -> str:
        known = len(self._arguments)
        self._arguments += arguments
        if not self._begun:
            begin = _BEGIN.match(self._arguments) if known <= _MAX_BEGIN_CHARS else None
            if begin is None:
                return ""
            self._begun, self._read = True, begin.end()
        return "" if self._ended else self._next()

    def rest(self) -> str:
        if self._begun:
            return ""
        try:
            parsed = json.loads(self._arguments or '""')
        except (ValueError, RecursionError):
            return self._arguments
        values = list(parsed.values()) if isinstance(parsed, dict) else [parsed]
        return values[0] if len(values) == 1 and isinstance(values[0], str) else self._arguments

    def _next(self) -> str:
        found = _STRING.match(self._arguments, self._read)
        assert found is not None
        self._ended = self._arguments.startswith('"', found.end())
        piece = found[0]
        if not self._ended and (half := _HIGH_SURROGATE.search(piece)):  # its other half is still to come
            piece = piece[: half.start()]
        self._read += len(piece)
        try:
            text = json.loads(f'"{piece}"', strict=False)
        except ValueError:
            return piece
        return str(text).encode("utf-8", "replace").decode() if text else ""


def arguments_of(text: str) -> str:
    return json.dumps({INPUT: text}, ensure_ascii=False)


def arguments_in_pieces(texts: list[str]) -> list[str]:
    """Pieces of arguments, each of which brings one of these texts."""
    bodies = [json.dumps(text, ensure_ascii=False)[1:-1] for text in texts]
    return [f'{{"{INPUT}":"{bodies[0]}', *bodies[1:]] if bodies else []
