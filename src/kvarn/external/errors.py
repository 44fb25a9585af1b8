"""Errors of external servers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from kvarn.answers.generator import GeneratorFailedError
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.routes import FallbackReason
from kvarn.wire.openai.errors import ApiError, unavailable

_LONGEST_RETRY_S = 600.0
_OWN_FAULT = frozenset({401, 403, 404, 405})
"""The server rejects the key, or does not know this model or path: the configuration is wrong, not the client."""
_TRY_AGAIN = frozenset({408, 409, 425, 429})
_MAX_MESSAGE = 500


class ExternalRefusedError(ApiError):
    """The server refuses this request; the client has to change it."""

    def __init__(self, status: int, message: str, type: str, code: str | None, param: str | None) -> None:  # noqa: A002
        super().__init__(status, message, type=type, code=code, param=param)


class ExternalFailedError(GeneratorFailedError):
    """The server could not answer: it is overloaded, broken, wrongly configured, gone, or its answer makes no sense."""

    def __init__(
        self, message: str, *, status: int | None = None, retry_after_s: float | None = None, wrong_setup: bool = False
    ) -> None:
        """`status`: HTTP status that it sent; None: the connection failed, or what came was no answer.
        `wrong_setup`: it refused this gateway's key, or does not know the model."""
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.wrong_setup = wrong_setup

    @property
    def is_busy(self) -> bool:
        return self.status == 429 or (self.status == 503 and self.retry_after_s is not None)

    @property
    def fallback_reason(self) -> FallbackReason:
        """See `GeneratorFailedError`."""
        return "overload" if self.is_busy else "error"

    @property
    def api_error(self) -> ApiError:
        """See `GeneratorFailedError`."""
        if self.wrong_setup:
            why = "The server that runs this model refused this gateway; its log names the reason."
            return ApiError(502, why, type="server_error", code="external_refused")
        if self.is_busy:
            return unavailable("The server that runs this model is busy. Try again.", "overloaded", self.retry_after_s)
        return unavailable("The server that runs this model failed. Try again.", "replica_lost", self.retry_after_s)


def error_of_answer(status: int, body: bytes, headers: Mapping[str, str]) -> ExternalFailedError | ExternalRefusedError:
    """The error that an HTTP answer other than 200 stands for."""
    error = _error_object(body)
    message = str(error.get("message") or body[:_MAX_MESSAGE].decode("utf-8", "replace") or "no reason given")
    message = message[:_MAX_MESSAGE]
    if status in _OWN_FAULT:
        return ExternalFailedError(f"status {status}: {message}", status=status, wrong_setup=True)
    if 400 <= status < 500 and status not in _TRY_AGAIN:
        code, param = error.get("code"), error.get("param")
        return ExternalRefusedError(
            status,
            message,
            str(error.get("type") or "invalid_request_error"),
            None if code is None else str(code),
            None if param is None else str(param),
        )
    return ExternalFailedError(f"status {status}: {message}", status=status, retry_after_s=retry_after_of(headers))


def error_of_event(error: Any) -> ExternalFailedError | ExternalRefusedError:
    """The error that a stream tells of in the place of its next part."""
    fields = error if isinstance(error, dict) else {"message": str(error)}
    code = fields.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    return error_of_answer(status, json.dumps({"error": fields}).encode(), {})


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """The seconds of a Retry-After header, a number or a date; at most ten minutes. None: there is none."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - SYSTEM_CLOCK.time()
        except ValueError:
            return None
    return min(max(seconds, 0.0), _LONGEST_RETRY_S) if seconds == seconds else None


def _error_object(body: bytes) -> dict[str, Any]:
    """The error object of an answer: OpenAI's, or what vLLM, Ollama and FastAPI send."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(answer, dict):
        return {}
    error = answer.get("error", answer)
    if isinstance(error, str):
        return {"message": error}
    if not isinstance(error, dict):
        return {}
    detail = error.get("detail")
    return error if "message" in error or detail is None else {**error, "message": str(detail)}
