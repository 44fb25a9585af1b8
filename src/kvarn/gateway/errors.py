"""Every error a client can see, in OpenAI's shape, or Anthropic's."""

from __future__ import annotations

import asyncio
import math

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from kvarn.gateway.held_bytes import BodyRefusedError
from kvarn.gateway.record import RequestRecord, record_of
from kvarn.replica.client.protocol import ReplicaLostError, RequestRefusedError
from kvarn.store.errors import (
    ConflictError,
    NotFoundError,
    StorageFullError,
    StoreAwayError,
    StoreBusyError,
    StoreReadOnlyError,
)
from kvarn.text.errors import ChatTemplateError, PromptTooLongError, TemplateLimitError, TokenizerError
from kvarn.wire.anthropic.errors import error_body, speaks_anthropic
from kvarn.wire.messages import RefusalReason
from kvarn.wire.openai.errors import ApiError, invalid_request

RETRY_AFTER_S = 1.0
"""Seconds a client is told to wait where nothing better is known."""

STORAGE_FULL = "storage_full"
"""Code of refusals by the bound of what an organisation may store."""

_LINGER_S = 2.0
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_REFUSALS: dict[RefusalReason, tuple[int, str, str]] = {
    RefusalReason.QUEUE_FULL: (429, "rate_limit_error", "queue_full"),
    RefusalReason.QUEUE_TIMEOUT: (503, "server_error", "queue_timeout"),
    RefusalReason.PROMPT_TOO_LONG: (400, "invalid_request_error", "context_length_exceeded"),
    RefusalReason.NEVER_FITS: (400, "invalid_request_error", "never_fits"),
    RefusalReason.DRAINING: (503, "server_error", "draining"),
    RefusalReason.DUPLICATE_ID: (500, "server_error", "internal_error"),
    RefusalReason.INVALID: (400, "invalid_request_error", "invalid_value"),
    RefusalReason.INTERNAL: (500, "server_error", "internal_error"),
}
"""HTTP status, OpenAI error type and code of each refusal. A full queue is the client's signal to slow down (429); a
wait that grew too long and a server going down are the server's state (503). 429 and 503 carry Retry-After."""


_TOLD: tuple[type[Exception], ...] = (
    ApiError,
    RequestRefusedError,
    ReplicaLostError,
    TokenizerError,
    ChatTemplateError,
    ConflictError,
    NotFoundError,
    StorageFullError,
    StoreAwayError,
)


def unavailable(message: str, code: str, retry_after_s: float | None = None) -> ApiError:
    """A 503 with Retry-After."""
    return ApiError(503, message, type="server_error", code=code, headers=_retry_after(retry_after_s))


def storage_full(error: StorageFullError, param: str | None = None, besides: str = "") -> ApiError:
    """The 413 for what an organisation has no room for."""
    return ApiError(413, f"{error} {besides}".rstrip(), code=STORAGE_FULL, param=param)


def shutting_down() -> ApiError:
    """The 503 for a request that the server did not finish in the time it had to stop."""
    return unavailable("The server is shutting down and could not finish the answer. Try again.", "draining")


def to_api_error(error: Exception) -> ApiError:
    """What a client is told about an exception from the replica or of its own making."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestRefusedError):
        status, kind, code = _REFUSALS[error.reason]
        headers = _retry_after(error.retry_after_s) if status in (429, 503) else {}
        return ApiError(status, str(error), type=kind, code=code, headers=headers)
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
        return unavailable("Your organisation stores too much at this moment. Try again.", "storage_busy")
    if isinstance(error, StoreReadOnlyError):
        return unavailable("The database takes no writes at present. Try again.", "database_read_only")
    if isinstance(error, StoreAwayError):
        return unavailable("The database does not answer. Try again.", "database_away")
    return ApiError(
        500, "The server failed to answer; its log names the cause.", type="server_error", code="internal_error"
    )


def error_response(error: ApiError, record: RequestRecord) -> Response:
    """The HTTP answer that carries an error: in OpenAI's shape, in Anthropic's on the paths of its API."""
    unread = isinstance(error, BodyRefusedError) and not record.body_bytes
    kind = _LingeringResponse if unread else Response
    theirs = speaks_anthropic(record.endpoint)
    body = msgspec.json.encode(error_body(error, record.request_id) if theirs else error.body())
    return kind(body, status_code=error.status, headers=error.headers, media_type="application/json")


def add_error_handlers(app: FastAPI) -> None:
    """Answer the errors that routes raise, and those of routing itself, in OpenAI's shape."""
    for kind in _TOLD:
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(HTTPException, _answer_routing)
    app.add_exception_handler(ClientDisconnect, _note_disconnect)


async def _answer(request: Request, error: Exception) -> Response:
    return error_response(to_api_error(error), record_of(request.scope))


async def _answer_routing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path[:200]}"
    if error.status_code == 404:
        hint = _path_hint(request) or "/docs lists the operations."
        told = ApiError(404, f"Unknown request URL: {where}. {hint}", code="unknown_url")
    elif error.status_code == 405:
        allowed = ", ".join(_allowed_methods(request))
        message = f"Not allowed to {where}; allowed: {allowed}."
        told = ApiError(405, message, code="method_not_allowed", headers={"allow": allowed})
    else:
        told = ApiError(error.status_code, str(error.detail), headers=error.headers)
    return error_response(told, record_of(request.scope))


def _path_hint(request: Request) -> str | None:
    """The path that was meant, where it lacks `/v1`, has it twice, or ends in a slash."""
    path = str(request.scope["path"]).removeprefix(request.scope.get("root_path", ""))
    bare = path.rstrip("/").removeprefix("/v1").removeprefix("/v1")
    for meant in (f"/v1{bare}", bare):
        if meant and _methods_of(request, meant):
            base = str(request.base_url) + ("v1" if meant.startswith("/v1/") and not speaks_anthropic(meant) else "")
            return f"Did you mean {meant}? Clients of this server have the base URL {base.rstrip('/')}."
    return None


def _allowed_methods(request: Request) -> list[str]:
    """The methods of a request's path. Starlette's error names those of one route only, and paths have several."""
    return _methods_of(request, request.scope["path"])


def _methods_of(request: Request, path: str) -> list[str]:
    routing = {"type": "http", "path": path, "root_path": request.scope.get("root_path", "")}
    routes = request.app.routes
    return [
        method
        for method in _METHODS
        if any(route.matches(routing | {"method": method})[0] is Match.FULL for route in routes)
    ]


async def _note_disconnect(request: Request, _: Exception) -> Response:
    record_of(request.scope).disconnected = True
    return Response(status_code=499)  # nobody reads it


class _LingeringResponse(Response):
    """Answers a request whose body is not read to its end.

    Closing a socket with unread input resets the connection, and the client may never see the answer. So the answer is
    sent whole, then what still arrives is thrown away until the client leaves or a short time is over.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers["connection"] = "close"
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        try:
            async with asyncio.timeout(_LINGER_S):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        break
        except TimeoutError:
            pass  # long enough: the connection closes now
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _retry_after(seconds: float | None) -> dict[str, str]:
    return {"retry-after": str(max(1, math.ceil(RETRY_AFTER_S if seconds is None else seconds)))}
