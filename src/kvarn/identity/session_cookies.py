"""Cookies of the console's sessions: their names, and what a browser must show besides to change anything.

    kvarn_session   the token; no script reads it, and other sites' pages send it with links only (SameSite=Lax)
    kvarn_csrf      made of the token; the console's scripts read it and send it as `x-kvarn-csrf`

A page elsewhere can make a browser send the cookies, never read them, nor write the headers that are checked here.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import Scope

from kvarn.config.schema import KvarnConfig
from kvarn.store.keys import is_session_token
from kvarn.wire.openai.errors import ApiError

CSRF_COOKIE = "kvarn_csrf"
_CSRF_HEADER = b"x-kvarn-csrf"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_MAX_COOKIE_BYTES = 16_384

Headers = Iterable[tuple[bytes, bytes]]


class SessionCookies:
    """Names and attributes of the cookies on this server. Where it is possible the prefix `__Host-` keeps other servers
    of the domain from setting them."""

    def __init__(self, config: KvarnConfig) -> None:
        url = config.console.url or ""
        self.is_secure = url.startswith("https:") or config.gateway.ssl_certfile is not None
        self.path = (urlsplit(url).path if url else config.gateway.root_path).rstrip("/") or "/"
        self._origin = "{0.scheme}://{0.netloc}".format(urlsplit(url.lower())) if url else None
        self.session = self.name("kvarn_session")

    def name(self, plain: str) -> str:
        """The name of a cookie that no script reads."""
        return f"__Host-{plain}" if self.is_secure and self.path == "/" else plain

    def token(self, headers: Headers) -> str | None:
        """The token of the session that a browser presents. Of several different ones none: another server of the
        domain has set one of them."""
        found = set(cookies(headers, self.session))
        token = found.pop() if len(found) == 1 else ""
        return token if is_session_token(token) else None

    def check_origin(self, scope: Scope) -> None:
        """Refuse with a 403 what a page of another origin has sent. Programs that are no browsers name none."""
        headers = dict(scope["headers"])
        site = headers.get(b"sec-fetch-site")
        if site is not None:
            if site != b"same-origin":
                raise _refused("it was sent by a page of another site")
            return
        origin = headers.get(b"origin")
        if origin is None:
            return
        text = origin.decode("latin-1").lower()
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if text != self._origin and (text == "null" or urlsplit(text).netloc != host):
            raise _refused(
                f"the header 'Origin' names {text[:120]!r}, 'Host' {host[:120]!r}. Behind a proxy, name the console's "
                "address in console.url"
            )

    def check_change(self, scope: Scope, token: str) -> None:
        """Refuse with a 403 what would change something and does not come from the console's own pages."""
        if scope["method"] in _SAFE:
            return
        self.check_origin(scope)
        sent = next((value for name, value in scope["headers"] if name == _CSRF_HEADER), b"")
        if not hmac.compare_digest(sent, csrf_of(token).encode()):
            raise _refused(f"the header 'x-kvarn-csrf' must be what the cookie {CSRF_COOKIE!r} is")


def csrf_of(token: str) -> str:
    return hmac.digest(token.encode(), b"kvarn console csrf", hashlib.sha256).hex()


def cookies(headers: Headers, name: str) -> list[str]:
    """The values of a request's cookies of a name."""
    found = []
    for header, value in headers:
        if header == b"cookie" and len(value) <= _MAX_COOKIE_BYTES:
            for pair in value.decode("latin-1").split(";"):
                each, _, text = pair.strip().partition("=")
                if each == name:
                    found.append(text.strip('"'))
    return found


def _refused(why: str) -> ApiError:
    return ApiError(403, f"Not done for the console's session: {why}.", code="csrf_refused")
