"""Middleware around every request: its id, its metrics, its log line, and an answer whatever goes wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvarn.answers.errors import shutting_down, to_api_error
from kvarn.answers.observer import Observer, tell_ended
from kvarn.answers.record import RequestRecord
from kvarn.answers.traces import Traces
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.gateway import GatewayConfig
from kvarn.gateway.console.paths import is_console, is_public
from kvarn.gateway.documentation import is_documentation
from kvarn.gateway.errors import error_response
from kvarn.gateway.record import client_left, new_record, plain_request, without_body
from kvarn.identity.authenticator import Authenticator
from kvarn.identity.scopes import check_endpoint
from kvarn.observe.metrics import UNKNOWN, GatewayMetrics
from kvarn.observe.traces.traced import CLIENT_LEFT
from kvarn.wire.openai.common import ignored_fields, without_client_text
from kvarn.wire.openai.errors import ApiError, invalid_request

_MAX_WARNING_CHARS = 300
WARNING_HEADER = "x-kvarn-warning"  # header of an answer that says what of its request was ignored or changed
IGNORED_HEADER = "x-kvarn-ignored"  # the fields that were ignored, for programs

PROBES = frozenset({"/health", "/load", "/metrics", "/ping", "/ready", "/version"})
"""Asked every few seconds by machines: their log lines are for debugging only."""

PUBLIC = frozenset({"/", "/api/version", "/favicon.ico", "/openapi.json", *PROBES})  # paths that need no key

_SINGLE = frozenset({b"authorization", b"content-length", b"content-type", b"host", b"x-api-key"})
"""Headers that decide who asks for what, and how it is read."""
_ANNOUNCE_BODY = frozenset({b"content-length", b"transfer-encoding"})

_POLL_S = 0.05

_log = logging.getLogger("kvarn.gateway")


class OpenRequests:
    """Counts requests from their headers to their last settlement, which the database and the ledger must outlive."""

    def __init__(self) -> None:
        self.count = 0

    async def over(self, seconds: float) -> int:
        """Wait until there are none, but not longer than this; returns how many there still are."""
        deadline = SYSTEM_CLOCK.now() + seconds
        while self.count and SYSTEM_CLOCK.now() < deadline:  # noqa: ASYNC110  an event for each request would cost more
            await asyncio.sleep(_POLL_S)
        return self.count


class RequestMiddleware:
    """Around all routes: plain ASGI, since what wraps every chunk of every stream must cost next to nothing."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: GatewayMetrics,
        authenticator: Authenticator,
        open_requests: OpenRequests,
        check_process: Callable[[int], None],
        config: GatewayConfig,
        traces: Traces,
        observers: Sequence[Observer],
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._authenticator = authenticator
        self._open = open_requests
        self._check_process = check_process
        self._config = config
        self._traces = traces
        self._observers = observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, _without_traceback(send))
            return
        self._open.count += 1
        answers_head = scope["method"] == "HEAD"
        try:
            await self._answer(plain_request(scope), receive, without_body(send) if answers_head else send)
        finally:
            self._open.count -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = new_record(scope)
        record.reply.client_left = partial(client_left, receive)
        request_id = record.request_id.encode()
        if record.endpoint not in PROBES and not _is_page(record.endpoint):
            self._traces.begin(record, scope["headers"])
        id_headers = [(name.encode(), request_id) for name in record.reply.dialect.request_id_headers]
        if (trace := record.timeline.trace) is not None:
            id_headers.append((b"traceresponse", trace.traceparent.encode()))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.reply.status = message["status"]
                if record.reply.warnings:
                    record.reply.headers |= _warning_headers(record.reply.warnings)
                own = [(name.encode(), value.encode()) for name, value in record.reply.headers.items()]
                message = {**message, "headers": [*message.get("headers", []), *id_headers, *own]}
            elif not message.get("more_body", False):
                # Before the client hears of the end: its next request shall find the tokens and the place of this one.
                await record.close()
            await send(message)

        self._metrics.in_flight.inc()
        try:
            check_headers(scope, self._config)
            if not (record.endpoint in PUBLIC or _is_file(record.endpoint)):
                self._check_process(self._open.count)
                if "\0" in scope["path"]:
                    raise invalid_request("The path holds a NUL byte.")
                record.principal = await self._authenticator.principal(scope)
                check_endpoint(record.principal, record.endpoint)
                record.timeline.mark("authenticated")
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:
            # Only the server's own end cancels a request here: its time to drain is over. Passed on, it would be a
            # traceback in the log and a 500 in the HTTP server's own shape.
            if not record.reply.status:
                await error_response(shutting_down(), record)(scope, receive, send_with_id)
        except ApiError as error:  # from before the routes, whose errors have their own handlers
            await error_response(error, record)(scope, receive, send_with_id)
        except Exception as error:
            _log.exception("request %s failed", record.request_id)
            if not record.reply.status:
                await error_response(to_api_error(error), record)(scope, receive, send_with_id)
        finally:
            self._metrics.in_flight.dec()
            try:
                await record.close()
            finally:
                record.timeline.mark("ended")
                self._count(scope, record)

    def _count(self, scope: Scope, record: RequestRecord) -> None:
        route = scope.get("route")  # one label for all paths that do not exist
        endpoint = route.path_format if isinstance(route, Route) else UNKNOWN
        status = (
            CLIENT_LEFT
            if record.reply.disconnected and record.reply.status in (0, CLIENT_LEFT)
            else record.reply.status
        )
        if endpoint not in PROBES and not _is_page(record.endpoint):
            tell_ended(self._observers, record, f"{scope['method']} {endpoint}", scope["method"], endpoint)
        seconds = record.timeline.total_s
        self._metrics.requests.labels(record.choice.name, endpoint, str(status)).inc()
        exemplar = None if (trace := record.timeline.trace) is None else trace.exemplar
        self._metrics.request_seconds.labels(record.choice.name, endpoint).observe(seconds, exemplar)
        if record.reply.disconnected:
            self._metrics.disconnects.labels(record.choice.name, endpoint).inc()
        _log.log(
            logging.DEBUG if endpoint in PROBES or _is_file(record.endpoint) else logging.INFO,
            "answered",
            extra={
                "request_id": record.request_id,
                "id": record.id,
                "method": scope["method"],
                "endpoint": endpoint,
                "model": record.choice.name,
                "status": status,
                "seconds": round(seconds, 4),
                "client_left": record.reply.disconnected,
                **(
                    {"warnings": "; ".join(map(without_client_text, record.reply.warnings))}
                    if record.reply.warnings
                    else {}
                ),
            },
        )


def _is_file(path: str) -> bool:
    """Whether a path is the console's or the documentation's, and holds nothing that is anybody's."""
    return is_public(path) or is_documentation(path)


def _is_page(path: str) -> bool:
    """Whether a path is for people to look at: no trace is made of it, and it is not kept as a request."""
    return is_console(path) or is_documentation(path)


def _warning_headers(warnings: Sequence[str]) -> dict[str, str]:
    fields = ignored_fields(warnings)
    named = {IGNORED_HEADER: ", ".join(fields)} if fields else {}
    return {WARNING_HEADER: "; ".join(map(_plain, warnings)), **named}


def _plain(warning: str) -> str:
    """A warning as a header may hold it: words of clients and of other servers may be in it."""
    words = " ".join(warning.split())
    return "".join(char if " " <= char <= "~" else "?" for char in words)[:_MAX_WARNING_CHARS]


def _without_traceback(send: Send) -> Send:
    """Leave out the traceback of a failed start: the server logs `app.state.start_error` in one line."""

    async def send_plain(message: Message) -> None:
        if message["type"] == "lifespan.startup.failed":
            message = {"type": message["type"]}
        await send(message)

    return send_plain


def check_headers(scope: Scope, config: GatewayConfig) -> None:
    """Refuse (431, 400) headers that are too many or too long, that say twice what may be said once (proxies and
    servers would believe different ones), or that ask for another protocol before a body."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    size = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(name) + len(value) for name, value in headers)
    if len(headers) > config.max_headers or size > config.max_header_bytes:
        limits = f"{config.max_headers} headers, {config.max_header_bytes} bytes"
        why = f"Too many headers, or too long ones: at most {limits} (gateway.max_headers, gateway.max_header_bytes)."
        raise ApiError(431, why, code="headers_too_large")
    names = [name for name, _ in headers]
    single = [name for name in names if name in _SINGLE]
    if len(single) > len(set(single)):
        name = next(name for name in single if single.count(name) > 1).decode()
        raise invalid_request(f"The header {name!r} stands in the request more than once.", name, "duplicate_header")
    if b"upgrade" in names and not _ANNOUNCE_BODY.isdisjoint(names):  # the HTTP server would drop the body
        why = "The server speaks HTTP/1.1 only: send a request that has a body without the header 'upgrade'."
        raise ApiError(400, why, code="upgrade_not_supported", headers={"connection": "close"})
