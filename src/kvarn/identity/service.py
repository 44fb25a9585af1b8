"""Everything about who a request acts for, joined."""

from __future__ import annotations

import logging

from kvarn.config.schema import KvarnConfig
from kvarn.identity.authenticator import Authenticator, KeyAuthenticator
from kvarn.identity.bootstrap import ensure_admin_key
from kvarn.identity.key_cache import KeyCache
from kvarn.identity.known_keys import KnownKeys
from kvarn.identity.last_used import LastUsed
from kvarn.identity.oidc.sign_in import OidcSignIn
from kvarn.identity.open_server import auth_mode
from kvarn.identity.session_cookies import SessionCookies
from kvarn.identity.sessions import Sessions
from kvarn.jobs.periodic import Periodic
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError, StoreError
from kvarn.store.repositories.tenants.organizations import ensure_default_organization

_WRITE_EVERY_S = 10.0

_log = logging.getLogger("kvarn.identity")


class Identity:
    """Keys and whom they act for. Raises `ConfigError` where the server would be open to other machines, or the secret
    of the identity provider cannot be read."""

    def __init__(self, config: KvarnConfig, store: Store) -> None:
        self._config = config
        self._store = store
        self._mode = auth_mode(config)
        self._last_used = LastUsed(store)
        self.key_cache = KeyCache(store, config.auth)
        keys = KnownKeys(self.key_cache, config.auth.api_keys)
        self.sessions = Sessions(keys, SessionCookies(config), config.console.session_hours * 3600)
        self.oidc = None if config.console.oidc is None else OidcSignIn(config.console.oidc, self.sessions, store.now)
        self.authenticator: Authenticator = KeyAuthenticator(
            keys,
            self.sessions,
            self._last_used,
            open_to=config.auth.allowed_hosts if self._mode == "open" else None,
            origins=config.gateway.allowed_origins or (),
        )
        self._writing = Periodic("times at which keys were used", self._last_used.write, _WRITE_EVERY_S)

    def start(self) -> None:
        self._writing.start()

    async def prepare(self) -> None:
        """Make the default organisation, and its first administrator's key, where they are missing."""
        is_new = await ensure_default_organization(self._store)
        if not is_new and self._mode == "open":
            return
        try:
            await ensure_admin_key(self._store, self._config)
        except StoreAwayError:
            raise
        except StoreError as error:
            if self._mode == "keys":
                raise
            _log.warning("%s: `kvarn keys create` makes one", error)

    async def stop(self) -> None:
        await self._writing.stop()
        await self.key_cache.close()
        if self.oidc is not None:
            await self.oidc.provider.close()
        await self._last_used.write()
