"""Items of evaluation sets, made of what was asked before."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from kvarn.wire.evaluations import EvaluationItem
from kvarn.wire.openai.errors import ApiError, invalid_request


def item_of(asked: Any, expected: str) -> EvaluationItem:
    """The item that a kept prompt makes: messages of a chat, input items of a response, or one text. Raises `ApiError`:
    400, it is none that can be asked again."""
    if isinstance(asked, list) and len(asked) == 1 and isinstance(asked[0], str):
        (asked,) = asked
    try:
        if isinstance(asked, str):
            return EvaluationItem(prompt=asked, expected=expected)
        if isinstance(asked, list) and all(isinstance(each, dict) for each in asked):
            return EvaluationItem(messages=[_message(each) for each in asked], expected=expected)
    except ValidationError:  # empty, or too many messages
        raise _refused() from None
    raise _refused()


def _message(item: dict[str, Any]) -> dict[str, Any]:
    """A message of a chat as it is, one of a response as a chat has it."""
    if "type" not in item:
        return item
    content = item.get("content")
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        content = "".join(part["text"] for part in content)
    if item["type"] != "message" or not isinstance(content, str):
        raise _refused()
    return {"role": item.get("role", "user"), "content": content}


def _refused() -> ApiError:
    return invalid_request("This is neither a chat of texts nor one text: it cannot become an item.", "request")
