"""A browser that signs in or out: where it is, and its cookies; `identity/session_cookies.py` reads those."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from kvarn.identity.session_cookies import CSRF_COOKIE, SessionCookies, csrf_of
from kvarn.identity.sessions import Session


def client_address(request: Request) -> str:
    """The address that the connection comes from: behind a proxy, the proxy's."""
    return request.client.host if request.client is not None else ""


def set_session(response: Response, cookies: SessionCookies, session: Session, now: int) -> None:
    """Give a browser a session, until it ends."""
    lifetime_s = max(1, int((session.expires_at or now) - now))
    set_cookie(response, cookies, cookies.session, session.token, lifetime_s)
    set_cookie(response, cookies, CSRF_COOKIE, csrf_of(session.token), lifetime_s, for_scripts=True)


def clear_session(response: Response, cookies: SessionCookies) -> None:
    set_cookie(response, cookies, cookies.session, "", 0)
    set_cookie(response, cookies, CSRF_COOKIE, "", 0, for_scripts=True)


def set_cookie(
    response: Response, cookies: SessionCookies, name: str, value: str, lifetime_s: int, *, for_scripts: bool = False
) -> None:
    """A cookie for this server's paths alone; with 0 seconds it is deleted."""
    response.set_cookie(
        name,
        value,
        max_age=lifetime_s,
        path=cookies.path,
        secure=cookies.is_secure,
        httponly=not for_scripts,
        samesite="lax",
    )
