"""Errors in Anthropic's shape."""

from __future__ import annotations

from typing import Any

from kvarn.wire.openai.errors import ApiError

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


def is_anthropic_path(endpoint: str) -> bool:
    """Whether the operation at this path is one of Anthropic's."""
    return endpoint == "/v1/messages" or endpoint.startswith("/v1/messages/")


def error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    """The JSON body: `{"type": "error", "error": {"type", "message"}, "request_id"}`. The message begins with the path
    of the field at fault, as Anthropic's do, where it does not name it itself."""
    kind = _TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    named = error.param is None or error.param in error.message
    message = error.message if named else f"{error.param}: {error.message}"
    shown: dict[str, Any] = {"type": kind, "message": message}
    if error.param == "thread":  # Anthropic's client then sends the whole conversation by itself
        shown["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": shown, "request_id": request_id}
