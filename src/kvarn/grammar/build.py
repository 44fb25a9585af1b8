"""One grammar of all that a request asks for. Costs what the client likes: it runs in a process of `kvarn.sandbox`."""

from __future__ import annotations

import json
import logging
from typing import Any

import msgspec

from kvarn.grammar.answers import check_answer, validator
from kvarn.grammar.asked import Answered, AnswerGrammar, Asked, Calls, Refusal, Wanted
from kvarn.grammar.errors import GrammarError
from kvarn.grammar.structural_tags import from_structural_tag
from kvarn.grammar.text import MAX_GRAMMAR_BYTES, check, from_choices, from_ebnf, from_json_schema, from_regex
from kvarn.grammar.tool_calls import argument_schema, calls_grammar, text_or_calls_grammar

_log = logging.getLogger(__name__)

_MAX_JOINED_BYTES = 16 * MAX_GRAMMAR_BYTES  # largest size of the grammars of all functions together


def answer(payload: bytes) -> bytes:
    """The reply to an `Asked` or an `Answered`, all JSON; see `kvarn.sandbox.worker`."""
    request = msgspec.convert(json.loads(payload), Asked | Answered)
    if isinstance(request, Answered):
        return msgspec.json.encode(check_answer(request))
    try:
        return msgspec.json.encode(build(request))
    except MemoryError:
        raise
    except Exception as error:  # a form that the checks missed
        _log.exception("grammar compilation failed")
        param = "tools" if request.wanted is None else request.wanted.param
        return msgspec.json.encode(Refusal(f"{param!r} cannot be compiled ({type(error).__name__}).", param))


def build(asked: Asked) -> AnswerGrammar | Refusal:
    try:
        content = None if asked.wanted is None else _content(asked.wanted, asked)
        schema = _schema_text(asked.wanted)
        if asked.calls is None:
            return AnswerGrammar(content, content_schema=schema)
        return msgspec.structs.replace(_with_calls(content, asked.calls, asked), content_schema=schema)
    except _RefusedError as error:
        return error.refusal


class _RefusedError(Exception):
    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.refusal = Refusal(message, param)


def _schema_text(wanted: Wanted | None) -> str | None:
    is_schema = wanted is not None and wanted.kind == "json_schema"
    return json.dumps(schema_of(wanted.value)) if wanted is not None and is_schema else None


def _content(wanted: Wanted, asked: Asked) -> str:
    _check_end(asked, wanted.param)
    try:
        grammar = _converted(wanted, asked)
        check(grammar)
    except GrammarError as error:
        raise _RefusedError(f"{wanted.subject}: {error}.", wanted.param) from None
    return grammar


def _converted(wanted: Wanted, asked: Asked) -> str:
    value = wanted.value
    if wanted.kind == "json_schema":
        return _checked_schema(schema_of(value))
    if wanted.kind == "regex":
        return from_regex(value)
    if wanted.kind == "choice":
        return from_choices(value)
    if wanted.kind == "grammar":
        return from_ebnf(value)
    return from_structural_tag(_object(value), asked.markers)


def _with_calls(content: str | None, calls: Calls, asked: Asked) -> AnswerGrammar:
    strict = any(function.strict for function in calls.functions)
    if not (calls.forced or strict or content is not None):
        return AnswerGrammar(None)
    syntax = calls.syntax
    if not syntax.json or not (calls.forced or syntax.marker or content is not None):
        warning = "ignored 'strict', calls in this model's format cannot be kept to a schema unless they are forced"
        return AnswerGrammar(content, [warning] if strict else [])
    _check_end(asked, "tools")
    schemas, warnings = _schemas(calls)
    if calls.forced:
        grammar = calls_grammar(calls, asked.markers, schemas)
    else:
        grammar = text_or_calls_grammar(calls, content, asked.markers, schemas)
    try:
        check(grammar, _MAX_JOINED_BYTES)  # what each part alone is not may be too much together
    except GrammarError as error:
        raise _RefusedError(f"Invalid 'tools': {error}.", "tools") from None
    return AnswerGrammar(grammar, warnings, argument_schemas={name: json.dumps(each) for name, each in schemas.items()})


def _schemas(calls: Calls) -> tuple[dict[str, Any], list[str]]:
    """The schema that each function's arguments are kept to, and what is not enforced of them."""
    schemas: dict[str, Any] = {}
    warnings: list[str] = []
    for function in calls.functions:
        schemas[function.name] = argument_schema(function)
        try:
            check(_checked_schema(schemas[function.name]))
        except GrammarError as error:
            if function.strict:
                message = f"Invalid schema for function {function.name!r}: {error}."
                raise _RefusedError(message, function.param) from None
            schemas[function.name] = {"type": "object"}
            warnings.append(f"the schema of {function.name!r} is not enforced: {error}")
    return schemas, warnings


def _checked_schema(schema: dict[str, Any] | bool) -> str:
    validator(json.dumps(schema))  # first: what follows expects a valid schema
    return from_json_schema(schema)


def _check_end(asked: Asked, param: str) -> None:
    if asked.ignore_eos:
        message = f"'ignore_eos' cannot go with {param!r}: the answer ends where it matches."
        raise _RefusedError(message, "ignore_eos")


def schema_of(value: Any) -> dict[str, Any] | bool:
    """A schema, also as text. Raises GrammarError where it is none."""
    found = _parsed(value) if isinstance(value, str) else value
    if not isinstance(found, dict | bool):
        raise GrammarError("a schema is an object, true or false")
    return found


def _object(value: Any) -> dict[str, Any]:
    found = _parsed(value) if isinstance(value, str) else value
    if not isinstance(found, dict):
        raise GrammarError("it must be an object")
    return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"it is not JSON: {error}") from None
