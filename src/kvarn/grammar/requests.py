"""What a request says of its answer's form, as one grammar."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvarn.grammar.errors import GrammarError
from kvarn.grammar.structural_tags import from_structural_tag
from kvarn.grammar.text import check, from_choices, from_ebnf, from_json_schema, from_regex
from kvarn.grammar.tool_calls import argument_schema, calls_grammar, syntax_of, text_or_calls_grammar
from kvarn.wire.openai.chat.request import ChatCompletionRequest, ToolUse
from kvarn.wire.openai.common import SamplingFields
from kvarn.wire.openai.errors import ApiError, invalid_request

_JSON_OBJECT = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """One field that says what the answer must match."""

    param: str
    build: Callable[[], str]
    """Makes the grammar."""
    subject: str
    """What is wrong where it cannot be enforced."""


@dataclass(slots=True)
class AnswerGrammar:
    """The grammar of a request's answer."""

    text: str | None
    """None: it may be anything."""
    warnings: list[str] = field(default_factory=list)
    """What is not enforced all the same."""


def completion_grammar(request: SamplingFields, markers: Mapping[str, int]) -> AnswerGrammar:
    """Of a text completion. Takes milliseconds, a second at worst: not for an event loop.

    Args:
        request: The request.
        markers: Ids of the tokens that are no text, by name (`Tokenizer.markers`).

    Raises:
        ApiError: 400 that names the field: it is broken, cannot be enforced, or does not go with another.
    """
    wanted = _wanted(request, markers)
    return AnswerGrammar(None if wanted is None else _built(wanted, request))


def chat_grammar(
    request: ChatCompletionRequest, opening: str, plain_opening: str, markers: Mapping[str, int]
) -> AnswerGrammar:
    """Of a chat's answer. Raises, and takes time, as `completion_grammar` does.

    Args:
        request: The request.
        opening: What stands of a forced call in the prompt.
        plain_opening: How the model begins a call of a function `f`.
        markers: See `completion_grammar`.
    """
    wanted = _wanted(request, markers)
    content = None if wanted is None else _built(wanted, request)
    use = request.tool_use
    if use is None or not use.functions:
        return AnswerGrammar(content)
    strict = any(function.strict for function in use.functions)
    if not (use.forced or strict or content is not None):
        return AnswerGrammar(None)
    syntax = syntax_of(plain_opening)
    if syntax is None or not (use.forced or syntax.marker or content is not None):
        warning = "ignored 'strict', calls in this model's format cannot be kept to a schema unless they are forced"
        return AnswerGrammar(content, [warning] if strict else [])
    schemas, warnings = _schemas(request, use)
    _check_end(request, "tools")
    if use.forced:
        return AnswerGrammar(calls_grammar(syntax, use, opening, markers, schemas), warnings)
    return AnswerGrammar(text_or_calls_grammar(syntax, use, content, markers, schemas), warnings)


def _schemas(request: ChatCompletionRequest, use: ToolUse) -> tuple[dict[str, Any], list[str]]:
    """The schema that each function's arguments are kept to, and what is not enforced of them."""
    schemas: dict[str, Any] = {}
    warnings: list[str] = []
    for function in use.functions:
        schemas[function.name] = argument_schema(function)
        try:
            check(from_json_schema(schemas[function.name]))
        except GrammarError as error:
            if function.strict:
                raise _refusal(
                    f"Invalid schema for function {function.name!r}", error, _where(request, function.name)
                ) from None
            schemas[function.name] = _JSON_OBJECT
            warnings.append(f"the schema of {function.name!r} is not enforced: {error}")
    return schemas, warnings


def _where(request: ChatCompletionRequest, name: str) -> str:
    if request.functions is not None:
        names = [function.name for function in request.functions]
        return f"functions[{names.index(name)}].parameters"
    names = [tool.function.name for tool in request.tools or ()]
    return f"tools[{names.index(name)}].function.parameters"


def _wanted(request: SamplingFields, markers: Mapping[str, int]) -> Wanted | None:
    found = [*_response_format(request, markers), *_structured_outputs(request, markers), *_guided(request)]
    if len(found) > 1:
        message = f"{found[0].param!r} and {found[1].param!r} cannot both say what the answer must match."
        raise invalid_request(message, found[1].param)
    return found[0] if found else None


def _built(wanted: Wanted, request: SamplingFields) -> str:
    _check_end(request, wanted.param)
    try:
        grammar = wanted.build()
        check(grammar)
    except GrammarError as error:
        raise _refusal(wanted.subject, error, wanted.param) from None
    return grammar


def _check_end(request: SamplingFields, param: str) -> None:
    if request.ignore_eos:
        message = f"'ignore_eos' cannot go with {param!r}: the answer ends where it matches."
        raise invalid_request(message, "ignore_eos")


def _refusal(subject: str, error: GrammarError, param: str) -> ApiError:
    return invalid_request(f"{subject}: {error}.", param)


def _response_format(request: SamplingFields, markers: Mapping[str, int]) -> list[Wanted]:
    form = request.response_format if isinstance(request, ChatCompletionRequest) else None
    param = "response_format"
    if form is None or form.type == "text":
        return []
    if form.type == "json_object":
        return [Wanted(param, lambda: from_json_schema(_JSON_OBJECT), "Invalid 'response_format'")]
    if form.json_schema is not None:
        schema = form.json_schema
        subject = f"Invalid schema for response_format {schema.name!r}"
        return [Wanted(param, lambda: from_json_schema(schema.schema_), subject)]
    tag = {"structures": form.structures, "triggers": form.triggers}
    return [Wanted(param, lambda: from_structural_tag(tag, markers), "Invalid 'response_format'")]


def _structured_outputs(request: SamplingFields, markers: Mapping[str, int]) -> list[Wanted]:
    given = request.structured_outputs
    if given is None:
        return []
    makers: dict[str, tuple[Any, Callable[[Any], str]]] = {
        "json": (given.json_, lambda value: from_json_schema(_schema(value))),
        "regex": (given.regex, from_regex),
        "choice": (given.choice, from_choices),
        "grammar": (given.grammar, from_ebnf),
        "json_object": (given.json_object, lambda _value: from_json_schema(_JSON_OBJECT)),
        "structural_tag": (given.structural_tag, lambda value: from_structural_tag(_object(value), markers)),
    }
    found = [_made(f"structured_outputs.{name}", *maker) for name, maker in makers.items() if maker[0] is not None]
    if not found and given.model_fields_set.isdisjoint({*makers, "json_"}):
        names = ", ".join(makers)
        raise invalid_request(f"'structured_outputs' must hold one of {names}.", "structured_outputs")
    return found


def _guided(request: SamplingFields) -> list[Wanted]:
    makers: dict[str, tuple[Any, Callable[[Any], str]]] = {
        "guided_json": (request.guided_json, lambda value: from_json_schema(_schema(value))),
        "guided_regex": (request.guided_regex, from_regex),
        "guided_choice": (request.guided_choice, from_choices),
        "guided_grammar": (request.guided_grammar, from_ebnf),
    }
    return [_made(name, *maker) for name, maker in makers.items() if maker[0] is not None]


def _made(param: str, value: Any, make: Callable[[Any], str]) -> Wanted:
    return Wanted(param, lambda: make(value), f"Invalid {param!r}")


def _schema(value: dict[str, Any] | bool | str) -> dict[str, Any] | bool:
    """A schema, also as text."""
    found = _parsed(value) if isinstance(value, str) else value
    if not isinstance(found, dict | bool):
        raise GrammarError("a schema is an object, true or false")
    return found


def _object(value: dict[str, Any] | str) -> dict[str, Any]:
    found = _parsed(value) if isinstance(value, str) else value
    if not isinstance(found, dict):
        raise GrammarError("it must be an object")
    return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"it is not JSON: {error}") from None
