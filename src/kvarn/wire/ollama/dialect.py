"""Ollama's dialect: errors are one string, streams are lines of JSON."""

from __future__ import annotations

from typing import Any

from kvarn.wire.dialect import Dialect
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.sse import encode_json


def line(data: object) -> bytes:
    return encode_json(data) + b"\n"


def _error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    named = error.param is None or error.param in error.message
    return {"error": error.message if named else f"{error.param}: {error.message}"}


OLLAMA = Dialect(
    name="ollama",
    paths=("/api",),
    error_body=_error_body,
    error_schema={
        "title": "OllamaErrorResponse",
        "type": "object",
        "description": "An error, in Ollama's shape.",
        "required": ["error"],
        "properties": {"error": {"type": "string", "description": "Problem, and what to do about it."}},
    },
    stream_type="application/x-ndjson",
    stream_error=line,
    any_body_type=True,  # `curl -d`, as its documentation has it, says that a body is a form
)
