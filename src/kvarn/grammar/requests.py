"""Fields of a request that say what its answer must match."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvarn.grammar.asked import Asked, Calls, Function, Kind, Wanted
from kvarn.text.tool_calls.formats import CallSyntax
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.common import SamplingFields
from kvarn.wire.openai.errors import invalid_request

_JSON_OBJECT = {"type": "object"}


def completion_asked(request: SamplingFields, markers: Mapping[str, int]) -> Asked | None:
    """The form of a text completion; None: any. `markers`: ids of the tokens that are no text (`Tokenizer.markers`).
    Raises ApiError: 400 that names a field that does not go with another."""
    wanted = _wanted(request)
    return None if wanted is None else Asked(wanted, None, _markers_in(wanted, markers), bool(request.ignore_eos))


def chat_asked(
    request: ChatCompletionRequest, opening: str, syntax: CallSyntax, markers: Mapping[str, int]
) -> Asked | None:
    """The form of a chat's answer; see `completion_asked`. `opening`: what stands of a forced call in the prompt;
    `syntax`: how the model writes calls."""
    wanted, use = _wanted(request), request.tool_use
    calls = None
    if use is not None and use.functions:
        functions = [
            Function(each.name, each.parameters, bool(each.strict), _where(request, each.name))
            for each in use.functions
        ]
        calls = Calls(functions, use.forced, use.named, use.max_calls, opening, syntax)
    if wanted is None and calls is None:
        return None
    named = markers if calls is not None else _markers_in(wanted, markers)
    return Asked(wanted, calls, dict(named), bool(request.ignore_eos))


def _markers_in(wanted: Wanted | None, markers: Mapping[str, int]) -> dict[str, int]:
    return dict(markers) if wanted is not None and wanted.kind == "structural_tag" else {}


def _where(request: ChatCompletionRequest, name: str) -> str:
    if request.functions is not None:
        names = [function.name for function in request.functions]
        return f"functions[{names.index(name)}].parameters"
    names = [tool.function.name for tool in request.function_tools]
    return f"tools[{names.index(name)}].function.parameters"


def _wanted(request: SamplingFields) -> Wanted | None:
    found = [*_response_format(request), *_structured_outputs(request), *_guided(request)]
    if len(found) > 1:
        message = f"{found[0].param!r} and {found[1].param!r} cannot both say what the answer must match."
        raise invalid_request(message, found[1].param)
    return found[0] if found else None


def _response_format(request: SamplingFields) -> list[Wanted]:
    form = request.response_format if isinstance(request, ChatCompletionRequest) else None
    param = "response_format"
    if form is None or form.type == "text":
        return []
    if form.type == "json_object":
        return [Wanted(param, "json_schema", _JSON_OBJECT, "Invalid 'response_format'")]
    if form.json_schema is not None:
        subject = f"Invalid schema for response_format {form.json_schema.name!r}"
        return [Wanted(param, "json_schema", form.json_schema.schema_, subject)]
    tag = {"structures": form.structures, "triggers": form.triggers}
    return [Wanted(param, "structural_tag", tag, "Invalid 'response_format'")]


def _structured_outputs(request: SamplingFields) -> list[Wanted]:
    given = request.structured_outputs
    if given is None:
        return []
    values: dict[str, tuple[Kind, Any]] = {
        "json": ("json_schema", given.json_),
        "regex": ("regex", given.regex),
        "choice": ("choice", given.choice),
        "grammar": ("grammar", given.grammar),
        "json_object": ("json_schema", _JSON_OBJECT if given.json_object is not None else None),
        "structural_tag": ("structural_tag", given.structural_tag),
    }
    found = _given({f"structured_outputs.{name}": value for name, value in values.items()})
    if not found and given.model_fields_set.isdisjoint({*values, "json_"}):
        names = ", ".join(values)
        raise invalid_request(f"'structured_outputs' must hold one of {names}.", "structured_outputs")
    return found


def _guided(request: SamplingFields) -> list[Wanted]:
    values: dict[str, tuple[Kind, Any]] = {
        "guided_json": ("json_schema", request.guided_json),
        "guided_regex": ("regex", request.guided_regex),
        "guided_choice": ("choice", request.guided_choice),
        "guided_grammar": ("grammar", request.guided_grammar),
    }
    return _given(values)


def _given(values: Mapping[str, tuple[Kind, Any]]) -> list[Wanted]:
    return [
        Wanted(param, kind, value, f"Invalid {param!r}") for param, (kind, value) in values.items() if value is not None
    ]
