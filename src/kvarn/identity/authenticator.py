"""Authentication of requests."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from starlette.types import Scope

from kvarn.identity.known_keys import KnownKeys
from kvarn.identity.last_used import LastUsed
from kvarn.identity.open_server import check_host
from kvarn.identity.sessions import Sessions
from kvarn.store.keys import is_key
from kvarn.store.owner import Principal
from kvarn.wire.openai.errors import ApiError


class Authenticator(Protocol):
    async def principal(self, scope: Scope) -> Principal:
        """The principal of the request with this ASGI scope. Raises `ApiError` 401 without a valid key."""
        ...


class KeyAuthenticator:
    """Finds the principal by the request's API key, or without one by the session that its browser is in. `open_to`: on
    an open server, the names besides those of a loopback address under which requests without a valid key act as
    anybody, as do pages of `origins`; a valid key is honoured all the same. None: every request needs a key."""

    def __init__(
        self,
        keys: KnownKeys,
        sessions: Sessions,
        last_used: LastUsed,
        open_to: Collection[str] | None,
        origins: Collection[str] = (),
    ) -> None:
        self._keys = keys
        self._sessions = sessions
        self._last_used = last_used
        self._open_to = open_to
        self._origins = origins

    async def principal(self, scope: Scope) -> Principal:
        """The bearer of the key; without one, whoever is signed in; on an open server, anybody. Raises `ApiError`: 401,
        no valid key; 403, an open server was asked from elsewhere, or a session to change something by a page that
        is not the console's; 503, the database is away and the key not known."""
        key = presented_key(scope["headers"])
        found = await self._keys.bearer_of(key) if key is not None else await self._signed_in(scope)
        if found is not None:
            if found.key_id is not None:
                self._last_used.mark(found.key_id)
            return found
        if self._open_to is not None:
            check_host(scope["headers"], self._open_to, self._origins)
            return await self._keys.cache.anybody()
        is_over = key is None and self._sessions.cookies.token(scope["headers"]) is not None
        raise not_authenticated(key, is_over=is_over)

    async def _signed_in(self, scope: Scope) -> Principal | None:
        session = await self._sessions.current(scope["headers"])
        if session is None:
            return None
        self._sessions.cookies.check_change(scope, session.token)
        return session.principal


def presented_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The key that a request presents, of whatever form: `Authorization: Bearer …` (OpenAI's way) or
    `x-api-key: …` (Anthropic's). Of both the one that has the form of a key."""
    found = [text for name, value in headers if (text := _credential(name, value))]
    return next((text for text in found if is_key(text)), found[0] if found else None)


def _credential(name: bytes, value: bytes) -> str | None:
    if name == b"x-api-key":
        return value.decode("latin-1").strip()
    if name == b"authorization":
        scheme, _, credential = value.decode("latin-1").partition(" ")
        return credential.strip() if scheme.lower() == "bearer" else None
    return None


def not_authenticated(key: str | None, *, is_over: bool = False) -> ApiError:
    """The 401 for a request without a valid key; it does not say why. `is_over`: its browser's session is."""
    if is_over:
        message = "You are signed out, or your session is over: sign in to the console again."
    elif key is None:
        message = "You did not provide an API key: send it as 'Authorization: Bearer kv-…'."
    else:
        message = "Incorrect API key provided: it is unknown, has expired or was revoked."
    return ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": 'Bearer realm="kvarn"'})
