"""Sign-in at a provider, from the browser's first step to its last."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from pathlib import Path

from kvarn.config.console import OidcConfig
from kvarn.config.load import ConfigError
from kvarn.identity.oidc.attempt import Attempt, AttemptSeal, relative_page
from kvarn.identity.oidc.people import People
from kvarn.identity.oidc.provider import Provider
from kvarn.identity.sessions import Sessions
from kvarn.store.owner import Principal
from kvarn.wire.openai.errors import ApiError

_MAX_CODE = 4096


class OidcSignIn:
    """The provider of `console.oidc`. Raises `ConfigError`: its secret cannot be read, or it is no https address."""

    def __init__(self, config: OidcConfig, sessions: Sessions, now: Callable[[], float]) -> None:
        secret = _secret(config)
        self.name = config.name
        self.provider = Provider(config, secret, now)
        self._seal = AttemptSeal(secret)
        self._people = People(config, sessions)
        self._now = now

    async def begin(self, redirect_uri: str, page: str) -> tuple[str, str]:
        """The provider's address to send a browser to, and what the browser keeps meanwhile. `page` of the console
        comes afterwards."""
        attempt = Attempt(redirect_uri, relative_page(page))
        return await self.provider.authorization_url(attempt), self._seal.seal(attempt, self._now())

    async def finish(self, query: Mapping[str, str], sealed: str | None) -> tuple[Principal, str]:
        """The person who came back from the provider, and the page to go on to. Raises `ApiError`: 400, the browser did
        not come from `begin`, or too late; 403, 502: as the provider."""
        attempt = self._seal.open(sealed, self._now()) if sealed is not None else None
        if attempt is None or not hmac.compare_digest(attempt.state.encode(), query.get("state", "").encode()):
            why = "This sign-in was not begun here, or more than ten minutes ago, or again in another tab: begin again."
            raise ApiError(400, why, code="sign_in_lost")
        if "error" in query:
            why = f"You are not signed in: the provider says {query['error'][:80]!r}. Begin again, or ask who runs it."
            raise ApiError(403, why, code="sign_in_refused")
        issuer = (await self.provider.metadata()).issuer
        if query.get("iss", issuer) != issuer:
            raise ApiError(403, "You are not signed in: another provider answered.", code="sign_in_refused")
        code = query.get("code", "")
        if not code or len(code) > _MAX_CODE:
            raise ApiError(400, "The provider sent no code: begin again.", code="sign_in_lost")
        return await self._people.principal_of(await self.provider.claims(code, attempt)), attempt.next


def _secret(config: OidcConfig) -> str:
    if config.client_secret is not None:
        return config.client_secret
    path = Path(config.client_secret_file or "")
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"console.oidc.client_secret_file {str(path)!r} cannot be read: {why}") from None
    if not secret:
        raise ConfigError(f"console.oidc.client_secret_file {str(path)!r} is empty")
    return secret
