"""Every error a client can see, in the dialect of its request."""

from __future__ import annotations

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match

from kvarn.answers.errors import HANDLED, to_api_error
from kvarn.answers.record import RequestRecord
from kvarn.gateway.record import record_of
from kvarn.wire.dialects import dialect_of
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.parse import field_error

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def error_response(error: ApiError, record: RequestRecord) -> Response:
    record.reply.error_code = error.code or error.type
    body = msgspec.json.encode(record.reply.dialect.error_body(error, record.request_id))
    return Response(body, status_code=error.status, headers=error.headers, media_type="application/json")


def add_error_handlers(app: FastAPI) -> None:
    for kind in HANDLED:
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(RequestValidationError, _answer_validation)
    app.add_exception_handler(HTTPException, _answer_routing)
    app.add_exception_handler(ClientDisconnect, _note_disconnect)


async def _answer(request: Request, error: Exception) -> Response:
    return error_response(to_api_error(error), record_of(request.scope))


async def _answer_validation(request: Request, error: Exception) -> Response:
    """A query parameter is wrong, as pydantic says it; bodies are read by `JsonBody`."""
    assert isinstance(error, RequestValidationError)
    detail = error.errors()[0]
    _, *path = detail["loc"]
    name, *keys = [str(step).removesuffix("[]") for step in path if isinstance(step, str) and step != "[key]"] or [""]
    return error_response(field_error(name + "".join(f"[{key}]" for key in keys), detail), record_of(request.scope))


async def _answer_routing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path[:200]}"
    if error.status_code == 404:
        hint = _path_hint(request) or "/docs/api lists the operations."
        answer = ApiError(404, f"Unknown request URL: {where}. {hint}", code="unknown_url")
    elif error.status_code == 405:
        # Starlette's error names the methods of one route only, and paths have several.
        allowed = ", ".join(_methods_of(request, request.scope["path"]))
        message = f"Not allowed to {where}; allowed: {allowed}."
        answer = ApiError(405, message, code="method_not_allowed", headers={"allow": allowed})
    else:
        answer = ApiError(error.status_code, str(error.detail), headers=error.headers)
    return error_response(answer, record_of(request.scope))


def _path_hint(request: Request) -> str | None:
    """The path that was meant, where it lacks `/v1` or has it twice."""
    path = str(request.scope["path"]).removeprefix(request.scope.get("root_path", ""))
    bare = path.rstrip("/").removeprefix("/v1").removeprefix("/v1")
    for meant in (f"/v1{bare}", bare):
        if meant and _methods_of(request, meant):
            base_path = dialect_of(meant).base_path
            base = str(request.base_url).rstrip("/") + (base_path if meant.startswith(base_path + "/") else "")
            return f"Did you mean {meant}? Clients of this server have the base URL {base}."
    return None


def _methods_of(request: Request, path: str) -> list[str]:
    routing = {"type": "http", "path": path, "root_path": request.scope.get("root_path", "")}
    routes = request.app.routes
    methods = [
        method
        for method in _METHODS
        if any(route.matches(routing | {"method": method})[0] is Match.FULL for route in routes)
    ]
    return [*methods[:1], "HEAD", *methods[1:]] if "GET" in methods else methods


async def _note_disconnect(request: Request, _: Exception) -> Response:
    record_of(request.scope).reply.disconnected = True
    return Response(status_code=499)  # the client is gone
