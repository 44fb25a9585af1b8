"""The API errors for exceptions of the packages below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvarn.answers.generator import GeneratorFailedError
from kvarn.catalog.timeouts import StageTimeoutError
from kvarn.replica.client.protocol import ReplicaLostError, RequestRefusedError
from kvarn.store.errors import (
    ConflictError,
    DiskFullError,
    NotFoundError,
    StorageFullError,
    StoreAwayError,
    StoreBusyError,
    StoreReadOnlyError,
)
from kvarn.text.errors import ChatTemplateError, PromptTooLongError, TemplateLimitError, TokenizerError
from kvarn.wire.messages import RefusalReason
from kvarn.wire.openai.errors import ApiError, invalid_request, retry_after, unavailable

STORAGE_FULL = "storage_full"  # code of refusals by the bound of what an organisation may store


_REFUSALS: dict[RefusalReason, tuple[int, str, str]] = {
    RefusalReason.QUEUE_FULL: (429, "rate_limit_error", "queue_full"),
    RefusalReason.QUEUE_TIMEOUT: (503, "server_error", "queue_timeout"),
    RefusalReason.PROMPT_TOO_LONG: (400, "invalid_request_error", "context_length_exceeded"),
    RefusalReason.NEVER_FITS: (400, "invalid_request_error", "never_fits"),
    RefusalReason.DRAINING: (503, "server_error", "draining"),
    RefusalReason.DUPLICATE_ID: (500, "server_error", "internal_error"),
    RefusalReason.INVALID: (400, "invalid_request_error", "invalid_value"),
}
"""HTTP status, OpenAI error type and code of each refusal. A full queue is the client's signal to slow down (429); a
wait that grew too long and a server going down are the server's state (503). 429 and 503 carry Retry-After."""


def storage_full(error: StorageFullError, param: str | None = None, besides: str = "") -> ApiError:
    """The 413 for what would pass an organisation's quota."""
    return ApiError(413, f"{error} {besides}".rstrip(), code=STORAGE_FULL, param=param)


def shutting_down() -> ApiError:
    """The 503 for a request that the server did not finish in the time it had to stop."""
    return unavailable("The server is shutting down and could not finish the answer. Try again.", "draining")


def _refused(error: RequestRefusedError) -> ApiError:
    status, kind, code = _REFUSALS[error.reason]
    headers = retry_after(error.retry_after_s) if status in (429, 503) else {}
    return ApiError(status, str(error), type=kind, code=code, headers=headers)


def _unavailable(message: str, code: str) -> Callable[[Exception], ApiError]:
    return lambda error: unavailable(message, code)


_ANSWERS: tuple[tuple[type[Exception], Callable[[Any], ApiError]], ...] = (
    (ApiError, lambda error: error),
    (RequestRefusedError, _refused),
    (GeneratorFailedError, lambda error: error.api_error),
    (StageTimeoutError, lambda error: ApiError(504, f"{error} Try again.", type="server_error", code="timeout")),
    (PromptTooLongError, lambda error: invalid_request(str(error), "messages", "context_length_exceeded")),
    # No 5xx: clients would try it again.
    (TemplateLimitError, lambda error: invalid_request(str(error), code="template_limit_exceeded")),
    (TokenizerError, lambda error: invalid_request(str(error))),
    (ChatTemplateError, lambda error: invalid_request(str(error))),
    # The replica has logged why; what an engine died of is not for its clients to read.
    (
        ReplicaLostError,
        _unavailable("The model's engine was lost before the answer's end. Try again.", "replica_lost"),
    ),
    (NotFoundError, lambda error: ApiError(404, str(error), code="not_found")),
    (ConflictError, lambda error: ApiError(409, str(error), code="conflict")),
    (StorageFullError, storage_full),
    (
        StoreBusyError,
        _unavailable("Too many concurrent writes for your organisation. Try again.", "storage_busy"),
    ),
    (DiskFullError, _unavailable("The server's storage is full. Try again when there is room.", "database_read_only")),
    (
        StoreReadOnlyError,
        _unavailable("The server's storage takes no writes at present. Try again.", "database_read_only"),
    ),
    (StoreAwayError, _unavailable("The server's storage does not answer. Try again.", "database_away")),
)
"""The API errors for exceptions; a subclass stands before its base."""
HANDLED = tuple(kind for kind, _ in _ANSWERS)  # exceptions that are no fault of the server's code


def to_api_error(error: Exception) -> ApiError:
    make = next((make for kind, make in _ANSWERS if isinstance(error, kind)), None)
    if make is not None:
        return make(error)
    why = "The server failed to answer; its log names the cause."
    return ApiError(500, why, type="server_error", code="internal_error")
