"""Fields that are empty or null: an empty text is a text, and null is the default."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from kvarn.wire.anthropic.messages import MessagesRequest
from kvarn.wire.openai.common import DefaultsModel, RequestModel
from kvarn.wire.openai.completions import CompletionRequest
from kvarn.wire.openai.encoders import EmbeddingRequest, ModerationRequest
from kvarn.wire.openai.parse import parse_request
from kvarn.wire.openai.responses.request import ResponseRequest
from kvarn.wire.openai.tokenize import DetokenizeRequest, TokenizeRequest


def parse(model: type[BaseModel], /, **fields: Any) -> Any:
    return parse_request(model, json.dumps({"model": "m", **fields}).encode())


@pytest.mark.parametrize(
    ("model", "empty"),
    [
        (TokenizeRequest, {"prompt": ""}),
        (DetokenizeRequest, {"tokens": []}),
        (CompletionRequest, {"prompt": ""}),
        (EmbeddingRequest, {"input": ""}),
        (ModerationRequest, {"input": ""}),
        (ResponseRequest, {"input": ""}),
    ],
)
def test_an_empty_text_is_a_text(model: type[BaseModel], empty: dict[str, Any]) -> None:
    parsed = parse(model, **empty).model_dump()
    assert empty.items() <= parsed.items()


def _models(of: type[BaseModel]) -> set[type[BaseModel]]:
    return {of}.union(*map(_models, of.__subclasses__()))


def test_null_is_the_default_of_each_field_that_has_one() -> None:
    wanted = {model for model in _models(RequestModel) if model.__module__.startswith("kvarn.wire.anthropic.")}
    for model in wanted - _models(DefaultsModel):
        optional = {name: field.default for name, field in model.model_fields.items() if not field.is_required()}
        assert not any(optional.values()) and "" not in optional.values(), model
    edit = {"type": "clear_tool_uses_20250919", "trigger": None, "keep": None, "clear_at_least": None}
    said = [{"role": "user", "content": "a"}, {"role": "system", "content": None}]
    asked = {"max_tokens": 1, "messages": said}
    (parsed,) = parse(MessagesRequest, **asked, context_management={"edits": [edit]}).context_management.edits
    assert (parsed.trigger.value, parsed.keep.value) == (100_000, 3)
    kept = edit | {"keep": {"type": "tool_uses", "value": None}}
    (parsed,) = parse(MessagesRequest, **asked, context_management={"edits": [kept]}).context_management.edits
    assert parsed.keep.value == 0
    assert parse(CompletionRequest, prompt="a", min_tokens=None, skip_special_tokens=None).skip_special_tokens is True
