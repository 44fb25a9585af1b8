"""Grammars of tool calls, in the formats of `kvarn.text.tool_calls`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from kvarn.grammar.asked import Calls, Function
from kvarn.grammar.text import from_json_schema, joined, literal, quoted
from kvarn.text.tool_calls.argument_values import without_arguments
from kvarn.text.tool_calls.formats import NAME

_LEXEMES = re.compile(r'"[^"]*"|[{}]|[^"{}]+')


def calls_grammar(calls: Calls, markers: Mapping[str, int], schemas: Mapping[str, object]) -> str:
    """One call at least, of the functions that may be called, each with arguments that match its schema (by function's
    name)."""

    def beginning(name: str) -> str | None:
        prefix = calls.syntax.prefix(name)
        allowed = calls.named in (None, name) and prefix.startswith(calls.opening)
        return literal(prefix[len(calls.opening) :], markers) if allowed else None

    more, rules = _rules(calls, markers, beginning)
    return joined(f"start: first {more} end\n{rules}", **_arguments(calls, schemas))


def text_or_calls_grammar(
    calls: Calls, content: str | None, markers: Mapping[str, int], schemas: Mapping[str, object]
) -> str:
    """The grammar of an answer when the model decides whether to call. `content`: the grammar of an answer that
    calls nothing; None: any text, which may also stand before calls."""
    syntax, parts = calls.syntax, _arguments(calls, schemas)

    def whole(name: str) -> str:
        return literal(syntax.prefix(name), markers)

    def as_object(name: str) -> str:  # the answer may be an object too: the same lexemes for both
        return " ".join(map(quoted, _LEXEMES.findall(syntax.prefix(name))))

    def behind_marker(name: str) -> str:
        return literal(syntax.prefix(name)[len(syntax.marker) :], markers)

    if content is not None:
        more, rules = _rules(calls, markers, whole if syntax.marker else as_object)
        lark = f"start: content | calls\ncontent: @content\ncalls: first {more} end\n{rules}"
        return joined(lark, content=content, **parts)
    text = "TEXT: /(.|\\n)*/"
    if syntax.marker in markers:
        more, rules = _rules(calls, markers, whole)
        return joined(f"start: TEXT calls?\n{text}\ncalls: first {more} end\n{rules}", **parts)
    # The lexer leaves the text as soon as the marker is complete.
    more, rules = _rules(calls, markers, behind_marker)
    begin = f"begin[lazy]: TEXT {quoted(syntax.marker)}"
    return joined(f"start: begin first {more} end | TEXT\n{begin}\n{text}\n{rules}", **parts)


def _rules(calls: Calls, markers: Mapping[str, int], beginning: Callable[[str], str | None]) -> tuple[str, str]:
    """Name of the rule for further calls, or nothing, and the rules for all calls.

    `beginning`: text before the arguments of the first call, by the function's name; None: it is not called first.
    """
    syntax = calls.syntax

    def choice(before: Callable[[str], str | None]) -> str:
        texts = [(number, before(each.name)) for number, each in enumerate(calls.functions)]
        return " | ".join(f"{text} @args{number} after".lstrip() for number, text in texts if text is not None)

    rules = (
        f"first: {choice(beginning)}\nafter: {literal(syntax.after, markers)}\nend: {literal(syntax.end, markers)}\n"
    )
    if calls.max_calls is not None or syntax.separator is None:
        return "", rules
    between = syntax.separator + syntax.call
    return "another*", f"{rules}another: {choice(lambda name: literal(between.replace(NAME, name), markers))}\n"


def _arguments(calls: Calls, schemas: Mapping[str, object]) -> dict[str, str]:
    """Grammars of the functions' arguments, by the names that rules give them."""
    found = [schemas[each.name] for each in calls.functions]
    return {
        f"args{number}": from_json_schema(schema if isinstance(schema, dict) else {"type": "object"})
        for number, schema in enumerate(found)
    }


def argument_schema(function: Function) -> dict[str, object]:
    """The schema of a function's arguments: an object, whatever else is said of it, and an empty one where its schema
    tells of no argument."""
    given = function.parameters or {}
    if without_arguments(given):
        return {"type": "object", "additionalProperties": False}
    if "type" in given or any(key in given for key in ("$ref", "allOf", "anyOf", "oneOf")):
        return given
    return {"type": "object", **given}
