"""`/console/api/oidc`: to the identity provider, and back. People see these answers, so that errors are pages."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import wraps
from html import escape

from fastapi import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from kvarn.answers.errors import HANDLED, to_api_error
from kvarn.gateway.console.browser import client_address, set_cookie, set_session
from kvarn.gateway.console.paths import API, OIDC_CALLBACK, OIDC_START
from kvarn.gateway.console.router import console_router
from kvarn.gateway.dependencies import GatewayDep, actor_of
from kvarn.gateway.record import record_of
from kvarn.gateway.state import Gateway
from kvarn.gateway.static_files import SECURITY_HEADERS
from kvarn.identity.oidc.attempt import LIFETIME_S
from kvarn.identity.oidc.sign_in import OidcSignIn
from kvarn.identity.session_cookies import cookies
from kvarn.wire.openai.errors import ApiError

router = console_router()

_COOKIE = "kvarn_sign_in"
_CONSOLE_FROM_HERE = "../../"  # relative: right behind a proxy that adds or removes a prefix, too

_log = logging.getLogger("kvarn.gateway")

_Route = Callable[[Request, Gateway], Awaitable[Response]]


def _with_error_pages(route: _Route) -> _Route:
    @wraps(route)
    async def answer(request: Request, gateway: GatewayDep) -> Response:
        failed, address = gateway.control.sessions.failed, client_address(request)
        try:
            failed.check(address)
            return await route(request, gateway)
        except HANDLED as error:
            told = to_api_error(error)
        if told.status == 403:  # others are nobody's guess: any site's page can make a browser ask for them
            failed.note(address)
        # Other messages may name the person.
        why = told.message if told.status >= 500 else told.code
        _log.warning("a sign-in at the provider failed: %s", why, extra={"address": address})
        return _error_page(told, record_of(request.scope).request_id)

    return answer


@router.get(OIDC_START.removeprefix(API))
@_with_error_pages
async def start(request: Request, gateway: GatewayDep) -> Response:
    """Send the browser to the provider. `next`: page of the console to go on to, relative to its root."""
    oidc, own = _provider(gateway), gateway.control.sessions.cookies
    redirect_uri = f"{_own_url(request, gateway)}{OIDC_CALLBACK}"
    url, sealed = await oidc.begin(redirect_uri, request.query_params.get("next", ""))
    response = RedirectResponse(url, 302)
    set_cookie(response, own, own.name(_COOKIE), sealed, LIFETIME_S)
    return response


@router.get(OIDC_CALLBACK.removeprefix(API))
@_with_error_pages
async def callback(request: Request, gateway: GatewayDep) -> Response:
    """Begin a session for the person whom the provider names, and go on to the page that they came for."""
    oidc, sessions, headers = _provider(gateway), gateway.control.sessions, request.scope["headers"]
    sealed = cookies(headers, sessions.cookies.name(_COOKIE))
    principal, page = await oidc.finish(request.query_params, sealed[0] if len(sealed) == 1 else None)
    session = await sessions.begin(principal, actor_of(principal), "oidc", replaced=await sessions.current(headers))
    response = Response(status_code=302, headers={"location": _CONSOLE_FROM_HERE + page})
    set_cookie(response, sessions.cookies, sessions.cookies.name(_COOKIE), "", 0)
    set_session(response, sessions.cookies, session, int(gateway.store.now()))
    return response


def _provider(gateway: Gateway) -> OidcSignIn:
    if gateway.control.oidc is None:
        why = "No identity provider is configured (console.oidc): sign in with an API key."
        raise ApiError(404, why, code="no_provider")
    return gateway.control.oidc


def _own_url(request: Request, gateway: Gateway) -> str:
    """Root of this server as browsers know it."""
    return (gateway.config.console.url or str(request.base_url)).rstrip("/")


def _error_page(error: ApiError, request_id: str) -> Response:
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Sign-in to Kvarn</title></head><body>'
        f"<h1>Not signed in</h1><p>{escape(error.message)}</p>"
        f"<p>Request {escape(request_id)}, error <code>{escape(error.code or '')}</code>.</p>"
        f'<p><a href="{_CONSOLE_FROM_HERE}">Back to the console</a></p></body></html>'
    )
    return HTMLResponse(text, error.status, headers={**SECURITY_HEADERS, **error.headers})
