"""Servers that a project may use by name: the operator's, and those that its administrators registered."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from kvarn.config.schema import KvarnConfig
from kvarn.config.tool_servers import ToolServerKind
from kvarn.safety.errors import SafetyError
from kvarn.safety.sealing import Seal
from kvarn.store.engine import Store
from kvarn.store.models import StoredToolServer
from kvarn.store.owner import Owner
from kvarn.store.repositories import tool_servers as stored
from kvarn.tools.pins import ComparedTools
from kvarn.tools.server import ToolServer, configured_server
from kvarn.wire.openai.errors import unavailable

_log = logging.getLogger(__name__)


class ToolServers:
    """Finds servers. A name that the operator's configuration has is never a project's."""

    def __init__(self, config: KvarnConfig, store: Store, load_seal: Callable[[KvarnConfig], Seal] = Seal.load) -> None:
        self._config = config
        self._store = store
        self._load_seal = load_seal
        self.configured = {each.name: configured_server(each) for each in config.tools.servers}

    @cached_property
    def _seal(self) -> Seal:
        return self._load_seal(self._config)

    async def find(self, owner: Owner, label: str) -> ToolServer | None:
        """A server by its name. Raises `ApiError` 503 where its secrets cannot be opened."""
        if (known := self.configured.get(label)) is not None:
            return known
        row = await stored.find_by_name(self._store, owner, label)
        return None if row is None else await self.of_row(row)

    async def of_kind(self, owner: Owner, kind: ToolServerKind) -> ToolServer | None:
        """The project's server of a kind, else the operator's: the oldest where there are several."""
        row = await stored.find_by_kind(self._store, owner, kind)
        if row is not None:
            return await self.of_row(row)
        return next((each for each in self.configured.values() if each.kind == kind), None)

    async def of_row(self, row: StoredToolServer) -> ToolServer:
        return ToolServer(
            label=row.name,
            kind=row.kind,  # type: ignore[arg-type]  # one of them, as it was asked for
            url=row.url or "",
            headers=await self._opened(row),
            description=row.description,
            document=row.document,
            allowed_tools=None if row.allowed_tools is None else frozenset(row.allowed_tools),
            require_approval=row.require_approval,  # type: ignore[arg-type]
            timeout_s=row.timeout_s,
            pinned=row.pinned,
            refused=row.refused,
            id=row.id,
            version=row.version,
        )

    async def seal(self, headers: Mapping[str, str]) -> bytes | None:
        """Headers as the database keeps them. Raises `ApiError` 503 where this server cannot seal."""
        if not headers:
            return None
        plain = json.dumps(dict(headers)).encode()
        return await asyncio.to_thread(self._with_seal, lambda seal: seal.seal(plain))

    async def note(self, owner: Owner, server_id: str, compared: ComparedTools) -> None:
        """Write down which tools wait for approval, and tell the audit log when others do than before."""
        try:
            await stored.note_waiting(self._store, owner, server_id, dict(compared.waiting))
        except Exception as error:  # the tools wait all the same
            _log.warning("what waits for approval at the tool server %s was not written: %s", server_id, error)

    async def _opened(self, row: StoredToolServer) -> dict[str, str]:
        sealed = row.sealed_headers
        if sealed is None:
            return {}
        opened: dict[str, Any] = json.loads(await asyncio.to_thread(self._with_seal, lambda seal: seal.open(sealed)))
        return opened

    def _with_seal(self, use: Callable[[Seal], bytes]) -> bytes:
        try:
            return use(self._seal)
        except SafetyError as error:
            _log.error("headers of tool servers cannot be sealed or opened: %s", error)
            why = f"Headers of tool servers cannot be kept on this server: {error}"
            raise unavailable(why, "secrets_unavailable") from None
