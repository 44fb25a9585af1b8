"""Sessions of the console: begun by who can show that they may, ended by themselves."""

from __future__ import annotations

from typing import NamedTuple

from kvarn.identity.failed_attempts import FailedAttempts
from kvarn.identity.known_keys import KnownKeys
from kvarn.identity.session_cookies import Headers, SessionCookies
from kvarn.store.keys import session_lookup_of
from kvarn.store.owner import Principal
from kvarn.store.repositories.tenants.audited_changes import Actor
from kvarn.store.repositories.tenants.console_sessions import add_session, end_session


class Session(NamedTuple):
    token: str
    principal: Principal
    expires_at: float | None  # seconds since 1970


class Sessions:
    """The sessions of all gateways, in the database; `cookies` says how browsers hold them, `failed` how often one may
    try."""

    def __init__(self, keys: KnownKeys, cookies: SessionCookies, lifetime_s: float) -> None:
        self.keys = keys
        self.cookies = cookies
        self.failed = FailedAttempts()
        self._lifetime_s = lifetime_s

    async def current(self, headers: Headers) -> Session | None:
        """The session that a browser is in; None: none, or it is over."""
        token = self.cookies.token(headers)
        if token is None:
            return None
        grant = await self.keys.cache.session_of(token, self.keys.configured)
        if grant is None or grant.principal is None:
            return None
        return Session(token, grant.principal, grant.expires_at)

    async def begin(
        self, principal: Principal, actor: Actor, method: str, *, replaced: Session | None = None, bound_to: str = ""
    ) -> Session:
        """Begin a session, with a token that nobody has seen before; the browser's session until now ends. `bound_to`:
        digest of the key of the configuration that it was begun with."""
        async with self.keys.cache.audited_change(actor) as change:
            if replaced is not None:
                await end_session(change, session_lookup_of(replaced.token))
            row, token = await add_session(change, principal, self._lifetime_s, method=method, bound_to=bound_to)
            expires_at = row.expires_at
        return Session(token, principal, expires_at)

    async def end(self, session: Session, actor: Actor) -> None:
        """End a session: here at once, at other gateways as with keys that are revoked."""
        async with self.keys.cache.audited_change(actor) as change:
            await end_session(change, session_lookup_of(session.token))
