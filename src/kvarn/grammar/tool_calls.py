"""Grammars of tool calls, in the formats of `kvarn.text.tool_calls`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kvarn.grammar.asked import Calls, Function
from kvarn.grammar.text import from_json_schema, joined, literal, quoted
from kvarn.text.reasoning.harmony import CHANNEL, CONSTRAIN, MESSAGE
from kvarn.text.tool_calls.argument_values import without_arguments
from kvarn.text.tool_calls.deepseek import CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END, SEPARATOR

_LEXEMES = re.compile(r'"[^"]*"|[{}]|[^"{}]+')
NAME = "\0"
"""Stands in a `CallSyntax` for the function's name."""


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """Syntax of calls whose arguments are JSON: begin, calls with separators between them, end."""

    call: str
    """Up to the arguments of a call."""
    after: str
    separator: str | None = ""
    """None: there is one call."""
    begin: str = ""
    end: str = ""
    marker: str = ""
    """Text that begins a call, and that text outside calls must not contain; empty if no text marks the beginning of a
    call."""

    def prefix(self, name: str) -> str:
        """The text up to the arguments of the first call."""
        return self.begin + self.call.replace(NAME, name)


_OBJECT = f'{{"name": "{NAME}", "arguments": '
_LLAMA3 = CallSyntax(f'{{"name": "{NAME}", "parameters": ', "}", separator="; ")
_SYNTAXES = (
    CallSyntax(f"<tool_call>\n{_OBJECT}", "}\n</tool_call>", separator="\n", marker="<tool_call>"),
    CallSyntax(_OBJECT, "}", separator=", ", begin="[TOOL_CALLS] [", end="]", marker="[TOOL_CALLS]"),
    CallSyntax(f"[TOOL_CALLS]{NAME}[ARGS]", "", marker="[TOOL_CALLS]"),
    _LLAMA3,
    CallSyntax(_OBJECT, "}", separator=", ", begin="<|tool_call|>[", end="]", marker="<|tool_call|>"),
    CallSyntax(_OBJECT, "}", separator=", ", begin="functools[", end="]", marker="functools["),
    CallSyntax(
        f"{CALL_BEGIN}function{SEPARATOR}{NAME}\n```json\n",
        f"\n```{CALL_END}",
        separator="\n",
        begin=CALLS_BEGIN,
        end=CALLS_END,
        marker=CALLS_BEGIN,
    ),
    CallSyntax(f"{CALL_BEGIN}{NAME}{SEPARATOR}", CALL_END, begin=CALLS_BEGIN, end=CALLS_END, marker=CALLS_BEGIN),
    CallSyntax(f"{CHANNEL}commentary to=functions.{NAME} {CONSTRAIN}json{MESSAGE}", "", separator=None),
)


def syntax_of(opening: str) -> CallSyntax | None:
    """The syntax of the format in which a call of a function `f` begins with `opening`; None where there is none: its
    calls cannot be kept to a grammar."""
    return next((each for each in _SYNTAXES if opening and each.prefix("f").startswith(opening)), None)


def calls_grammar(syntax: CallSyntax, calls: Calls, markers: Mapping[str, int], schemas: Mapping[str, object]) -> str:
    """One call at least, of the functions that may be called, each with arguments that match its schema (by
    function's name)."""
    rules, parts = _calls(syntax, calls, markers, schemas)
    first = " | ".join(
        _sequence(literal(syntax.prefix(function.name)[len(calls.opening) :], markers), f"@args{number}", "after")
        for number, function in enumerate(calls.functions)
        if calls.named in (None, function.name) and syntax.prefix(function.name).startswith(calls.opening)
    )
    return joined(f"start: first {rules['more']} end\nfirst: {first}\n{rules['text']}", **parts)


def text_or_calls_grammar(
    syntax: CallSyntax, calls: Calls, content: str | None, markers: Mapping[str, int], schemas: Mapping[str, object]
) -> str:
    """The grammar of an answer when the model decides whether to call. `content`: the grammar of an answer that
    calls nothing; None: any text, which may also stand before calls."""
    rules, parts = _calls(syntax, calls, markers, schemas)
    first = " | ".join(
        _sequence(literal(syntax.prefix(function.name), markers), f"@args{number}", "after")
        for number, function in enumerate(calls.functions)
    )
    if content is not None and not syntax.marker:  # the answer may be an object too: the same lexemes for both
        first = " | ".join(
            _sequence(*map(quoted, _LEXEMES.findall(syntax.prefix(function.name))), f"@args{number}", "after")
            for number, function in enumerate(calls.functions)
        )
    rule = f"calls: first {rules['more']} end\nfirst: {first}\n{rules['text']}"
    if content is not None:
        return joined(f"start: content | calls\ncontent: @content\n{rule}", content=content, **parts)
    text = "TEXT: /(.|\\n)*/"
    if syntax.marker in markers:
        return joined(f"start: TEXT calls?\n{text}\n{rule}", **parts)
    # The lexer leaves the text as soon as the marker is complete.
    behind = " | ".join(
        _sequence(literal(syntax.prefix(function.name)[len(syntax.marker) :], markers), f"@args{number}", "after")
        for number, function in enumerate(calls.functions)
    )
    begin = f"begin[lazy]: TEXT {quoted(syntax.marker)}"
    lark = f"start: begin first {rules['more']} end | TEXT\n{begin}\n{text}\nfirst: {behind}\n{rules['text']}"
    return joined(lark, **parts)


def _calls(
    syntax: CallSyntax, calls: Calls, markers: Mapping[str, int], schemas: Mapping[str, object]
) -> tuple[dict[str, str], dict[str, str]]:
    """Common part of the grammars: rules, and the grammars of arguments by name."""
    parts = {f"args{number}": _arguments(schemas[each.name]) for number, each in enumerate(calls.functions)}
    another = " | ".join(
        _sequence(
            literal((syntax.separator or "") + syntax.call.replace(NAME, each.name), markers), f"@args{number}", "after"
        )
        for number, each in enumerate(calls.functions)
    )
    text = f"after: {literal(syntax.after, markers)}\nend: {literal(syntax.end, markers)}\n"
    more = ""
    if calls.max_calls is None and syntax.separator is not None:
        text += f"another: {another}\n"
        more = "another*"
    return {"text": text, "more": more}, parts


def _arguments(schema: object) -> str:
    return from_json_schema(schema if isinstance(schema, dict) else {"type": "object"})


def _sequence(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def argument_schema(function: Function) -> dict[str, object]:
    """The schema of a function's arguments: an object, whatever else is said of it, and an empty one where its schema
    tells of no argument."""
    given = function.parameters or {}
    if without_arguments(given):
        return {"type": "object", "additionalProperties": False}
    if "type" in given or any(key in given for key in ("$ref", "allOf", "anyOf", "oneOf")):
        return given
    return {"type": "object", **given}
