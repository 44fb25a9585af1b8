"""Moderation: `/v1/moderations`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import PlainValidator, WithJsonSchema

from kvarn.wire.openai.common import LenientModel, disagreement

_TEXT_PART: dict[str, Any] = {
    "type": "object",
    "properties": {"type": {"type": "string", "enum": ["text"]}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {"type": "array", "items": _TEXT_PART, "minItems": 1},
    ]
}


def _as_texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return value
        if all(isinstance(item, dict) for item in value):
            return ["\n".join(_text_of(part, f"input[{position}]") for position, part in enumerate(value))]
    raise disagreement("'input' must be a string, a list of strings or a list of text parts, and not empty.", "input")


def _text_of(part: dict[str, Any], where: str) -> str:
    kind, text = part.get("type"), part.get("text")
    if kind == "image_url":
        raise disagreement("Only content parts of type 'text' are moderated: images are not.", f"{where}.type")
    if kind != "text":
        raise disagreement("The type of a content part must be 'text'.", f"{where}.type")
    if not isinstance(text, str):
        raise disagreement("The text of a content part must be a string.", f"{where}.text")
    unknown = next((name for name in part if name not in ("type", "text")), None)
    if unknown is not None:
        raise disagreement(f"Unrecognized request argument supplied: {where}.{unknown[:80]}", f"{where}.{unknown[:80]}")
    return text


class ModerationRequest(LenientModel):
    """The body of a moderation request."""

    input: Annotated[list[str], PlainValidator(_as_texts), WithJsonSchema(_SCHEMA)]
    """A text, several, or the text parts of one."""
    model: str | None = None
    """OpenAI's names stand for whatever moderates here."""


class ModerationResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in one text."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[str]]


class ModerationUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens looked at (Kvarn's extension)."""

    prompt_tokens: int
    total_tokens: int


class ModerationList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a moderation request: one result for each text, in order."""

    id: str
    model: str
    results: list[ModerationResult]
    usage: ModerationUsage | UnsetType = UNSET
