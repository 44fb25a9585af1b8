"""Fields and types shared by requests of several resources."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from heapq import nsmallest
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import quote

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from kvarn.wire.openai.cache import CacheOptions
from kvarn.wire.openai.sessions import AgentHint, RetentionDirectives
from kvarn.wire.sampling import MAX_INT

_MAX_METADATA = 16

_BEFORE_CLIENT_TEXT = ("ignored unknown field", "ignored unknown query parameter", "ignored the tool")
"""Beginnings of warnings that go on with what the client wrote."""
_MAX_WARNINGS = 8  # about one request: they go into a header, and each takes a look at all known names
_MAX_NAME = 40  # characters of an unknown field that are shown
_MORE = "ignored more"
_IGNORED = re.compile(r"""ignored [a-z ]*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")  # as `repr` writes a text

FIELDS_OF_OTHER_SERVERS = frozenset(
    {
        *("guided_choice", "guided_grammar", "guided_json", "guided_regex", "structured_outputs"),
        *("ebnf", "grammar", "json_schema", "regex"),
        *("chat_template", "documents", "mm_processor_kwargs", "truncate_prompt_tokens"),
        *("best_of", "early_stopping", "length_penalty", "logits_processors", "response_format", "use_beam_search"),
    }
)
"""Fields of vLLM, SGLang and llama.cpp that cannot be ignored where they are unknown: the answer would be another."""


def validation_error(kind: str, message: str, param: str | None = None) -> PydanticCustomError:
    """The error that a validator raises. `param`: the field, if it is another than the one that is validated."""
    return PydanticCustomError(kind, "{message}", {"message": message} | ({"param": param} if param else {}))


def disagreement(message: str, param: str) -> PydanticCustomError:
    """An error about fields that are each valid but do not go together; `param` is the one to change."""
    return validation_error("disagreement", message, param)


def _check_metadata_size(value: object) -> object:
    # Asked first: pydantic would look at every entry and gather a complaint about each.
    if isinstance(value, dict) and len(value) > _MAX_METADATA:
        raise validation_error("too_long", f"may have at most {_MAX_METADATA} entries, not {len(value)}")
    return value


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    BeforeValidator(_check_metadata_size),
]


def check_printable(value: str) -> str:
    if not value.isprintable() or not value.strip():
        raise PydanticCustomError("not_printable", "it must be printable text")
    return value


class RequestModel(BaseModel):
    """Base of all request objects: no unknown fields, no conversion between types, finite numbers only."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True, protected_namespaces=())


def is_empty(value: object) -> bool:
    """Whether a value asks for nothing, as null does: an empty text, list or object."""
    return value is None or (isinstance(value, str | list | dict) and not value)


EMPTY_IS_NULL = BeforeValidator(lambda value: None if is_empty(value) else value)
"""Marks a field, of an object that is no `LenientModel`, of which an empty value asks for nothing."""


class DefaultsModel(RequestModel):
    """Base of objects of which null is the default of every field that has one."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict) or None not in data.values():
            return data
        known = {field.alias or name: field for name, field in cls.model_fields.items()}
        nulls = {name for name, value in data.items() if value is None and name in known}
        meant = {name for name in nulls if known[name].is_required() or known[name].default is None}
        return {name: value for name, value in data.items() if name not in nulls - meant}


class LenientModel(DefaultsModel):
    """Base of what asks a model for an answer. Unknown fields are ignored, each with a warning, since clients send what
    other servers know; those of `unsupported_fields` are refused. What is empty is taken as null where that is the
    field's default.

    Warnings go to the list that is given as the context of validation.
    """

    model_config = ConfigDict(extra="ignore")
    unsupported_fields: ClassVar[frozenset[str]] = frozenset()
    """Unknown fields without which the answer would be another."""
    fields_that_may_be_empty: ClassVar[frozenset[str]] = frozenset()
    """Fields of which an empty value is not null: an empty JSON schema lets through any JSON."""

    @model_validator(mode="before")
    @classmethod
    def _look_at_unknown_fields(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias or name: field for name, field in cls.model_fields.items()}
        unknown = data.keys() - known.keys()
        for name in sorted(name for name in unknown & cls.unsupported_fields if not is_empty(data[name])):
            raise validation_error("unsupported_parameter", f"{name!r} is not supported.", name)
        for name in nsmallest(_MAX_WARNINGS + 1, unknown):
            near = get_close_matches(name[:_MAX_NAME], known, 1, 0.8)
            hint = f", did you mean {near[0]!r}?" if near else ""
            warn_ignored(info, f"ignored unknown field {name[:_MAX_NAME]!a}{hint}")
        empty = {name for name in data.keys() & known.keys() if is_empty(data[name]) and known[name].default is None}
        return data | dict.fromkeys(empty - cls.fields_that_may_be_empty)


def warn_ignored(info: ValidationInfo, warning: str) -> None:
    """Tell the client that a field is ignored: `ignored`, then its name or path in quotes, then why."""
    warnings: list[str] = [] if info.context is None else info.context
    if len(warnings) < _MAX_WARNINGS and warning not in warnings:
        warnings.append(warning)
    elif warning not in warnings and warnings[-1] != _MORE:
        warnings.append(_MORE)


def ignored_fields(warnings: Iterable[str]) -> list[str]:
    """The fields that are ignored, by warnings that say so: `ignored 'speed', there is one`. What a client has named
    may hold any character: all but letters, digits and `._-~[]` are percent-encoded."""
    found = (_IGNORED.match(warning) for warning in warnings)
    return [quote(literal_eval(match[1]), safe="[]", errors="surrogatepass") for match in found if match]


def without_client_text(warning: str) -> str:
    """A warning as it may be logged and kept: the name of an unknown field is whatever the client wrote."""
    return next((words for words in _BEFORE_CLIENT_TEXT if warning.startswith(words)), warning)


def ignored(why: str, *without_warning: object) -> BeforeValidator:
    """Marks a field that is taken and has no effect: what it asks for is only a wish. A warning says why, unless the
    value is empty or one of these."""

    def check(value: object, info: ValidationInfo) -> object:
        if not is_empty(value) and value not in without_warning:
            warn_ignored(info, why)
        return value

    return BeforeValidator(check)


def refused(hint: str = "", *, even_empty: bool = False) -> BeforeValidator:
    """Marks a field that an API defines and Kvarn does not serve: null is fine, and (unless `even_empty`) what is
    empty; anything else is a 400."""

    def check(value: object, info: ValidationInfo) -> None:
        if value is not None and (even_empty or not is_empty(value)):
            raise validation_error(
                "unsupported_parameter", f"{info.field_name!r} is not supported{hint and ': '}{hint}."
            )

    return BeforeValidator(check)


Refused = Annotated[None, refused()]


def only(*values: object, types: Collection[str] = (), why: str = "") -> BeforeValidator:
    """Let through the named values, objects with one of these `types`, and null, as which what is empty is taken;
    anything else is a 400 that says why."""

    def check(value: object, info: ValidationInfo) -> object:
        if is_empty(value):
            return None
        is_typed = isinstance(value, dict) and value.get("type") in types
        known = is_typed or any(value == each and type(value) is type(each) for each in values)
        if not known:
            message = why or f"{info.field_name!r} may only be {' or '.join(map(repr, values))}."
            raise validation_error("unsupported_value", message)
        return value

    return BeforeValidator(check)


def _check_biases(value: object) -> object:
    # By hand, since a dictionary of 100,000 wrong values would be as many complaints.
    if value is None:
        return None
    if not isinstance(value, dict):
        raise disagreement("'logit_bias' must map token ids to numbers.", "logit_bias")
    checked: dict[str, float] = {}
    for token, bias in value.items():
        try:
            checked[token] = float(bias) if type(bias) in (int, float) else float("nan")
        except OverflowError:
            checked[token] = float("inf")
        if not isfinite(checked[token]):
            where = f"logit_bias.{token[:80]}"
            raise disagreement(f"Invalid value for {where!r}: it must be a number.", where)
        if abs(checked[token]) > 100:
            raise disagreement("'logit_bias' may only hold numbers from -100 to 100.", "logit_bias")
    return checked


Biases = Annotated[
    dict[str, float] | None,
    PlainValidator(_check_biases),
    WithJsonSchema({"anyOf": [{"type": "object", "additionalProperties": {"type": "number"}}, {"type": "null"}]}),
]
"""Token ids as text, and what is added to their logits."""


Strings = Annotated[list[str], Field(fail_fast=True)]
TokenIds = Annotated[list[int], Field(fail_fast=True)]


Obfuscation = Annotated[bool | None, ignored("ignored 'include_obfuscation', events are sent as they are", False)]
"""Stream option: random characters in the events, to hide their lengths."""


class StreamOptions(LenientModel):
    include_usage: bool | None = None  # send one more chunk with the request's usage before `[DONE]`
    include_obfuscation: Obfuscation = None


JsonSchema = dict[str, Any] | bool
SchemaOrText = Annotated[JsonSchema | str | None, BeforeValidator(lambda value: None if value == "" else value)]
"""A JSON schema, also as text."""


class StructuredOutputs(LenientModel):
    """Constraint on the answer's text: one of these, with vLLM's names and meanings."""

    json_: SchemaOrText = Field(None, alias="json")  # a JSON schema, or its text
    regex: str | None = None
    choice: Strings | None = None
    grammar: str | None = None  # in Lark's syntax or as GBNF
    json_object: Literal[True] | None = None
    structural_tag: dict[str, Any] | str | None = None

    fields_that_may_be_empty = frozenset({"json"})
    unsupported_fields = frozenset({"whitespace_pattern", "disable_additional_properties"})
    backend: object = None  # hints for vLLM, without any effect here
    disable_any_whitespace: object = None
    disable_fallback: object = None


HINTS = frozenset({"agent_hint", "retention_directives", "cache"})
"""Fields that may be ignored without harm where they are not known."""


class SamplingFields(LenientModel):
    """Fields of chat and text completions alike. What depends on the model, the prompt or the server's limits is
    checked where they become `SamplingParams` (`kvarn.text.sampling`)."""

    unsupported_fields = FIELDS_OF_OTHER_SERVERS
    fields_that_may_be_empty = frozenset({"guided_json"})

    model: str
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    n: int | None = Field(None, ge=1, le=MAX_INT)
    stop: str | Strings | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    logit_bias: Biases = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    max_tokens: int | None = Field(None, ge=1, le=MAX_INT)
    user: str | None = None

    # Extensions, with vLLM's names and meanings.
    top_k: int | None = Field(None, ge=-1, le=MAX_INT)  # keep the k most likely tokens; 0 or -1 keeps all
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    ignore_eos: bool = False  # go on past the model's end tokens
    min_tokens: int = Field(0, ge=0, le=MAX_INT)
    stop_token_ids: TokenIds | None = None
    bad_words: Strings | None = None
    allowed_token_ids: TokenIds | None = None
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_INT)
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    add_special_tokens: bool | None = None
    """Let the tokenizer add its own tokens (such as the first one). Default: chat no (the template writes them),
    completions yes."""
    priority: int = Field(0, ge=-1000, le=1000)  # lower runs first
    cache_salt: str | None = Field(None, min_length=1, max_length=256)
    """Only requests with the same salt share cached prompts."""
    return_token_ids: bool = False  # send the token ids of prompt and answer beside the text
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText = None  # what `structured_outputs.json` was before 2025-12, and so on
    guided_regex: str | None = None
    guided_choice: Strings | None = None
    guided_grammar: str | None = None
    agent_hint: AgentHint | None = None
    retention_directives: RetentionDirectives | None = None
    cache: CacheOptions | None = None

    @model_validator(mode="after")
    def _stream_fields_agree(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise disagreement("'stream_options' is only allowed when 'stream' is true.", "stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise disagreement("'prompt_logprobs' cannot be streamed.", "prompt_logprobs")
        return self

    @property
    def is_structured(self) -> bool:
        """Whether it says what its answer must match."""
        guided = (self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar)
        return self.structured_outputs is not None or any(each is not None for each in guided)

    @property
    def end_user(self) -> str | None:
        """The client's name of its own user."""
        return self.user

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


SAMPLING_FIELDS: frozenset[str] = (FIELDS_OF_OTHER_SERVERS | SamplingFields.model_fields.keys()) - HINTS
"""Those too that chat and text completions know: for requests that know them not, or by other names."""


_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "minItems": 1}, "minItems": 1},
    ]
}


def _check(value: object) -> object:
    # By hand, since a union would try each form on a hundred thousand ids and gather as many complaints.
    if isinstance(value, str) or (isinstance(value, list) and value and _is_list_of_one_kind(value)):
        return value
    why = "must be a string, a list of strings, a list of token ids or a list of lists of token ids, and not empty"
    raise validation_error("input_form", why)


def _is_list_of_one_kind(items: list[Any]) -> bool:
    first = items[0]
    if isinstance(first, list):
        return all(isinstance(item, list) and item and _all_of(item, int) for item in items)
    return _all_of(items, str) or _all_of(items, int)


def _all_of(items: list[Any], kind: type) -> bool:
    return all(type(item) is kind for item in items)  # bool is an int to isinstance


Forms = str | list[str] | list[int] | list[list[int]]
TextOrTokens = Annotated[Forms, PlainValidator(_check), WithJsonSchema(_SCHEMA)]


def as_list(value: Forms) -> list[str | list[int]]:
    """The inputs one by one, each text or token ids."""
    if isinstance(value, str) or isinstance(value[0], int):
        return [value]
    return list(value)
