"""Authentication of requests."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Protocol

from starlette.types import Scope

from kvarn.identity.key_cache import KeyCache
from kvarn.identity.last_used import LastUsed
from kvarn.identity.open_server import check_host
from kvarn.store.keys import digest_of, is_key
from kvarn.store.owner import Principal, Role
from kvarn.wire.openai.errors import ApiError


class Authenticator(Protocol):
    async def principal(self, scope: Scope) -> Principal:
        """The principal of the request with this ASGI scope. Raises `ApiError` 401 without a valid key."""
        ...


class KeyAuthenticator:
    """Finds the principal by the request's API key, one of the database or of the configuration. `open_to`: on an open
    server, the names besides those of a loopback address under which requests without a valid key act as anybody, as do
    pages of `origins`; a valid key is honoured all the same. None: every request needs a key."""

    def __init__(
        self,
        key_cache: KeyCache,
        last_used: LastUsed,
        open_to: Collection[str] | None,
        origins: Collection[str] = (),
        api_keys: Collection[str] = (),
    ) -> None:
        self._key_cache = key_cache
        self._last_used = last_used
        self._open_to = open_to
        self._origins = origins
        self._configured = [digest_of(key) for key in api_keys]

    async def principal(self, scope: Scope) -> Principal:
        """The bearer of the key; on an open server, anybody. Raises `ApiError`: 401, no valid key; 403, an open server
        was asked from elsewhere; 503, the database is away and the key not known."""
        key = presented_key(scope["headers"])
        if key is not None and self._is_configured(key):
            return replace(await self._key_cache.anybody(), role=Role.SERVICE, priority=0)
        found = await self._key_cache.bearer_of(key) if key is not None and is_key(key) else None
        if found is not None:
            if found.key_id is not None:
                self._last_used.mark(found.key_id)
            return found
        if self._open_to is not None:
            check_host(scope["headers"], self._open_to, self._origins)
            return await self._key_cache.anybody()
        raise not_authenticated(key)

    def _is_configured(self, key: str) -> bool:
        digest = digest_of(key)
        return any(hmac.compare_digest(digest, each) for each in self._configured)


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


def not_authenticated(key: str | None) -> ApiError:
    """The 401 for a request without a valid key; it does not say why."""
    if key is None:
        message = "You did not provide an API key: send it as 'Authorization: Bearer kv-…'."
    else:
        message = "Incorrect API key provided: it is unknown, has expired or was revoked."
    return ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": 'Bearer realm="kvarn"'})
