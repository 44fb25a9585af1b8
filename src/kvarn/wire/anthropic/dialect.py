"""Anthropic's dialect."""

from __future__ import annotations

from typing import Any

from kvarn.wire.dialect import Dialect
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.sse import named_event

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_TEXT = {"type": "string"}


def _error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    """The message begins with the path of the field at fault, as Anthropic's do, where it does not name it itself."""
    kind = _TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    named = error.param is None or error.param in error.message
    message = error.message if named else f"{error.param}: {error.message}"
    shown: dict[str, Any] = {"type": kind, "message": message}
    if error.param == "thread":  # Anthropic's client then sends the whole conversation by itself
        shown["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": shown, "request_id": request_id}


def _stream_error(body: dict[str, Any]) -> bytes:
    return named_event("error", body)


ANTHROPIC = Dialect(
    name="anthropic",
    paths=("/v1/messages",),
    header=b"anthropic-version",
    request_id_headers=("x-request-id", "request-id"),
    error_body=_error_body,
    error_schema={
        "title": "AnthropicErrorResponse",
        "type": "object",
        "description": "An error, in Anthropic's shape.",
        "required": ["type", "error", "request_id"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": _TEXT, "message": _TEXT},
            },
            "request_id": _TEXT,
        },
    },
    stream_error=_stream_error,
)
