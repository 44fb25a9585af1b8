"""The API errors for exceptions of the packages below."""

from __future__ import annotations

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


def to_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestRefusedError):
        status, kind, code = _REFUSALS[error.reason]
        headers = retry_after(error.retry_after_s) if status in (429, 503) else {}
        return ApiError(status, str(error), type=kind, code=code, headers=headers)
    if isinstance(error, GeneratorFailedError):
        return error.api_error
    if isinstance(error, StageTimeoutError):
        return ApiError(504, f"{error} Try again.", type="server_error", code="timeout")
    if isinstance(error, PromptTooLongError):
        return invalid_request(str(error), "messages", "context_length_exceeded")
    if isinstance(error, TemplateLimitError):
        return invalid_request(str(error), code="template_limit_exceeded")  # no 5xx: clients would try it again
    if isinstance(error, TokenizerError | ChatTemplateError):
        return invalid_request(str(error))
    if isinstance(error, ReplicaLostError):
        # The replica has logged why; what an engine died of is not for its clients to read.
        return unavailable("The model's engine was lost before the answer's end. Try again.", "replica_lost")
    if isinstance(error, NotFoundError):
        return ApiError(404, str(error), code="not_found")
    if isinstance(error, ConflictError):
        return ApiError(409, str(error), code="conflict")
    if isinstance(error, StorageFullError):
        return storage_full(error)
    if isinstance(error, StoreBusyError):
        return unavailable("Too many concurrent writes for your organisation. Try again.", "storage_busy")
    if isinstance(error, DiskFullError):
        return unavailable("The server's storage is full. Try again when there is room.", "database_read_only")
    if isinstance(error, StoreReadOnlyError):
        return unavailable("The server's storage takes no writes at present. Try again.", "database_read_only")
    if isinstance(error, StoreAwayError):
        return unavailable("The server's storage does not answer. Try again.", "database_away")
    return ApiError(
        500, "The server failed to answer; its log names the cause.", type="server_error", code="internal_error"
    )
