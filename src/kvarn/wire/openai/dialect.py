"""OpenAI's dialect."""

from __future__ import annotations

from typing import Any

from kvarn.wire.dialect import Dialect
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.sse import DONE, event

_TEXT = {"type": "string"}


def _error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    return error.body()


OPENAI = Dialect(
    name="openai",
    paths=(
        *("/v1/chat", "/v1/completions", "/v1/responses", "/v1/conversations", "/v1/embeddings", "/v1/moderations"),
        *("/v1/rerank", "/v1/score", "/v1/batches", "/v1/uploads", "/v1/organization"),
    ),
    base_path="/v1",
    error_body=_error_body,
    error_schema={
        "title": "ErrorResponse",
        "type": "object",
        "description": "An error, in OpenAI's shape.",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": _TEXT | {"description": "Problem, and what to do about it."},
                    "type": _TEXT,
                    "param": {"type": ["string", "null"], "description": "The field or parameter at fault."},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    },
    stream_error=event,
    stream_end=DONE,
)
