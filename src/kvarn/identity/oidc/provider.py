"""An identity provider: what it says about itself, its keys, and what it gives for a code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import httpx

from kvarn.config.console import OidcConfig
from kvarn.config.load import ConfigError
from kvarn.identity.oidc.attempt import Attempt
from kvarn.identity.oidc.id_token import UnknownKeyError, read_id_token, refused
from kvarn.identity.open_server import is_loopback
from kvarn.wire.openai.errors import ApiError

_WELL_KNOWN = "/.well-known/openid-configuration"
_KEPT_S = 3600.0
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Metadata:
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None
    takes_basic: bool
    """Whether the token endpoint takes the secret as HTTP's basic authentication; else in the form."""


class Provider:
    """The provider of the configuration. All calls raise `ApiError`: 502, it does not answer as it should; 403, what it
    answers is refused. Raises `ConfigError`: it would be asked without TLS."""

    def __init__(self, config: OidcConfig, client_secret: str, now: Callable[[], float]) -> None:
        if not _is_protected(config.issuer):
            raise ConfigError(f"console.oidc.issuer {config.issuer!r} must be https: keys and secrets go over it")
        self._config = config
        self._secret = client_secret
        self._now = now
        self._http = httpx.AsyncClient(timeout=config.timeout_s, follow_redirects=False)
        self._metadata: tuple[float, Metadata] | None = None
        self._keys: tuple[float, list[Mapping[str, Any]]] | None = None

    async def close(self) -> None:
        await self._http.aclose()

    async def authorization_url(self, attempt: Attempt) -> str:
        """Address of the provider's page at which a person signs in."""
        from authlib.oauth2.rfc7636 import create_s256_code_challenge  # an extra

        endpoint = (await self.metadata()).authorization_endpoint
        query = {
            "response_type": "code",
            "client_id": self._config.client_id,
            "redirect_uri": attempt.redirect_uri,
            "scope": " ".join(self._config.scopes),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": create_s256_code_challenge(attempt.verifier),
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(query)}"

    async def claims(self, code: str, attempt: Attempt) -> dict[str, Any]:
        metadata = await self.metadata()
        answer = await self._redeem(metadata, code, attempt)
        id_token, access_token = answer.get("id_token"), answer.get("access_token")
        if not isinstance(id_token, str):
            raise refused("its answer has no ID token: is 'openid' among console.oidc.scopes?")
        claims = await self._read(metadata, id_token, attempt, access_token)
        if "email" not in claims and metadata.userinfo_endpoint is not None and isinstance(access_token, str):
            bearer = {"authorization": f"Bearer {access_token}"}
            more = await self._ask("GET", metadata.userinfo_endpoint, headers=bearer)
            if more.get("sub") != claims["sub"]:
                raise refused("its user info is another person's")
            claims = more | claims
        return claims

    async def metadata(self) -> Metadata:
        if self._metadata is None or self._now() - self._metadata[0] > _KEPT_S:
            read = await self._ask("GET", self._config.issuer.rstrip("/") + _WELL_KNOWN)
            self._metadata = self._now(), _metadata(read, self._config.issuer)
        return self._metadata[1]

    async def _read(self, metadata: Metadata, id_token: str, attempt: Attempt, access_token: Any) -> dict[str, Any]:
        for may_be_new in (False, True):
            try:
                return read_id_token(
                    id_token,
                    await self._web_keys(metadata, anew=may_be_new),
                    issuer=metadata.issuer,
                    client_id=self._config.client_id,
                    nonce=attempt.nonce,
                    access_token=access_token if isinstance(access_token, str) else None,
                    now=self._now(),
                    skew_s=self._config.clock_skew_s,
                )
            except UnknownKeyError:
                continue
        raise refused("its ID token is signed with a key that it does not publish")

    async def _web_keys(self, metadata: Metadata, *, anew: bool) -> list[Mapping[str, Any]]:
        if anew or self._keys is None or self._now() - self._keys[0] > _KEPT_S:
            keys = (await self._ask("GET", metadata.jwks_uri)).get("keys")
            if not isinstance(keys, list):
                raise _wrong(metadata.jwks_uri, "has no list of keys")
            self._keys = self._now(), [key for key in keys if isinstance(key, dict)]
        return self._keys[1]

    async def _redeem(self, metadata: Metadata, code: str, attempt: Attempt) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": attempt.redirect_uri,
            "code_verifier": attempt.verifier,
        }
        if metadata.takes_basic:
            auth = httpx.BasicAuth(quote(self._config.client_id, safe=""), quote(self._secret, safe=""))
            return await self._ask("POST", metadata.token_endpoint, data=form, auth=auth)
        form |= {"client_id": self._config.client_id, "client_secret": self._secret}
        return await self._ask("POST", metadata.token_endpoint, data=form)

    async def _ask(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        body = bytearray()
        try:
            async with asyncio.timeout(self._config.timeout_s), self._http.stream(method, url, **options) as answer:
                async for piece in answer.aiter_bytes():
                    body += piece
                    if len(body) > _MAX_BYTES:
                        raise _wrong(url, f"is longer than {_MAX_BYTES} bytes")
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            why = f"cannot be reached ({type(error).__name__})"
            raise _wrong(url, f"{why}. Try again; an API key works meanwhile") from None
        try:
            read = json.loads(body)
        except ValueError:
            read = None
        if method == "POST" and answer.status_code in (400, 401) and isinstance(read, dict):
            hint = " (check console.oidc.client_id and its secret)" if read.get("error") == "invalid_client" else ""
            raise refused(f"it did not take the code: {str(read.get('error'))[:80]!r}{hint}")
        if answer.status_code != 200 or not isinstance(read, dict):
            raise _wrong(url, f"is no JSON object, or failed (status {answer.status_code})")
        return read


def _metadata(read: Mapping[str, Any], issuer: str) -> Metadata:
    named = str(read.get("issuer"))
    if named.rstrip("/") != issuer.rstrip("/"):
        raise _wrong(issuer, f"names another issuer, {named[:120]!r}: set console.oidc.issuer to it")
    addresses = {name: read.get(name) for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")}
    for name, address in addresses.items():
        if not isinstance(address, str) or not _is_protected(address):
            raise _wrong(issuer, f"has no {name} with https")
    userinfo = read.get("userinfo_endpoint")
    methods = read.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
    return Metadata(
        issuer=named,
        **{name: str(address) for name, address in addresses.items()},
        userinfo_endpoint=userinfo if isinstance(userinfo, str) and _is_protected(userinfo) else None,
        takes_basic="client_secret_basic" in methods,
    )


def _is_protected(url: str) -> bool:
    """Whether what is sent there is encrypted, or does not leave this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def _wrong(url: str, why: str) -> ApiError:
    """The 502 for a provider that does not do its part. Queries and users are not repeated."""
    parts = urlsplit(url)
    where = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"[:200]
    return ApiError(
        502, f"The identity provider's answer from {where} {why}.", type="server_error", code="provider_away"
    )
