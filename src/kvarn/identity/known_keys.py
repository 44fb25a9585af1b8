"""Keys that open this server: those of the database, and those of the configuration."""

from __future__ import annotations

import hmac
from collections.abc import Collection
from dataclasses import replace

from kvarn.identity.key_cache import KeyCache
from kvarn.store.keys import digest_of, is_key
from kvarn.store.owner import Principal, Role


class KnownKeys:
    def __init__(self, key_cache: KeyCache, configured: Collection[str]) -> None:
        self.cache = key_cache
        self.configured = [digest_of(key) for key in configured]
        """Digests of the keys of the configuration."""

    async def bearer_of(self, key: str) -> Principal | None:
        """The principal of a key; None: not a valid one. Raises as the cache does."""
        if self.configured_digest(key):
            return replace(await self.cache.anybody(), role=Role.SERVICE, priority=0)
        return await self.cache.bearer_of(key) if is_key(key) else None

    def configured_digest(self, key: str) -> str:
        """The digest of a key of the configuration; empty for every other."""
        if not self.configured:
            return ""
        digest = digest_of(key)
        return digest if any(hmac.compare_digest(digest, each) for each in self.configured) else ""
