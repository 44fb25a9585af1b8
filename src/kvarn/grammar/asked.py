"""Messages to the process that makes grammars and checks answers, and its replies."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvarn.text.tool_calls.formats import CallSyntax

Kind = Literal["json_schema", "regex", "choice", "grammar", "structural_tag"]


class Wanted(msgspec.Struct, frozen=True):
    """One field that says what the answer must match."""

    param: str
    kind: Kind
    value: Any  # the field's value, unchanged
    subject: str
    """Beginning of the error where it cannot be enforced."""


class Function(msgspec.Struct, frozen=True):
    name: str
    parameters: dict[str, Any] | None
    strict: bool
    param: str  # the field that holds its schema


class Calls(msgspec.Struct, frozen=True):
    functions: list[Function]
    forced: bool
    named: str | None  # only this function may be called
    max_calls: int | None
    opening: str  # beginning of a forced call, written in the prompt
    syntax: CallSyntax
    """The model's way to write calls."""


class Asked(msgspec.Struct, frozen=True, tag="asked"):
    """All that one request says of its answer's form."""

    wanted: Wanted | None
    calls: Calls | None
    markers: dict[str, int]
    """Ids of the tokens that are no text, by name (`Tokenizer.markers`)."""
    ignore_eos: bool = False
    """Whether the answer is to go on behind its end."""


class AnswerGrammar(msgspec.Struct, frozen=True, tag="grammar"):
    text: str | None  # none: it may be anything
    warnings: list[str] = []  # parts that are not enforced
    content_schema: str | None = None
    """The schema, as JSON, of the text of an answer that calls nothing; None: it is of another kind."""
    argument_schemas: dict[str, str] = {}  # the schemas of arguments, as JSON, by function


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """A finished answer: its parts that are JSON of schemas."""

    parts: list[tuple[str, str]]  # schema and text of each


class Checked(msgspec.Struct, frozen=True):
    problem: str | None  # why it does not match; None: it does


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """Why it cannot be enforced: a 400."""

    message: str
    param: str
