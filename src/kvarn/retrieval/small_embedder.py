"""The small embedding model, deployed on first use beside the models that are served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from sqlalchemy.exc import IntegrityError

from kvarn.fleet.desired import changed, spec_of
from kvarn.store.engine import Store
from kvarn.store.repositories.deployments import deploy
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.text.checkpoint import SMALL_EMBEDDER

_SETTINGS = {"path": SMALL_EMBEDDER, "threads": 1}

_log = logging.getLogger("kvarn.retrieval")


class SmallEmbedder:
    """Deploys the small model as `kvarn deploy` would. `wake`: has the fleet look at its deployments at once."""

    def __init__(self, store: Store, wake: Callable[[], None]) -> None:
        self._store = store
        self._wake = wake
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Deploy it; where it is deployed already nothing changes. Raises `StoreAwayError`."""
        async with self._lock:
            spec = spec_of(changed(None, SMALL_EMBEDDER, _SETTINGS))
            try:
                async with audited_change(self._store, Actor("server")) as change:
                    await deploy(change, SMALL_EMBEDDER, spec)
            except IntegrityError:  # another process was first
                pass
            else:
                _log.info("vector stores need an embedding model: %s is started", SMALL_EMBEDDER)
            self._wake()
