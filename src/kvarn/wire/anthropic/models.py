"""The objects of `/v1/models` as Anthropic's clients know them."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from kvarn.wire.openai.models import Model


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    display_name: str
    created_at: str  # RFC 3339
    max_input_tokens: int | None
    max_tokens: int | None  # of an answer at most
    type: str = "model"
    lifecycle: str = "active"
    line: str | None = None
    capabilities: None = None
    deprecated_at: str | None = None
    retires_at: str | None = None


class ModelPage(msgspec.Struct, frozen=True, kw_only=True):
    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


def model_info(model: Model) -> ModelInfo:
    return ModelInfo(
        id=model.id,
        display_name=model.id,
        created_at=datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=model.max_model_len,
        max_tokens=model.max_model_len,
    )
