"""MCP servers that are commands: one process each for all who use it, ended when nobody has for a while.

use ──▶ no process ──▶ a task starts it, holds its session, and waits ──▶ idle ──▶ session closed, process ended
 └────▶ process ──────▶ the same session, several calls at once        └▶ broken ─▶ the next use starts another
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from kvarn.tools.server import ToolServer

if TYPE_CHECKING:
    from mcp import Client

_IDLE_S = 300.0

Connect = Callable[[ToolServer, AsyncExitStack], Awaitable["Client"]]
"""Starts a command and opens a session with it; both end with the stack."""


class CommandSessions:
    """Sessions with the servers of one gateway process that are commands."""

    def __init__(self, connect: Connect, idle_s: float = _IDLE_S) -> None:
        self._connect = connect
        self._idle_s = idle_s
        self._kept: dict[str, _KeptSession] = {}

    @asynccontextmanager
    async def client(self, server: ToolServer) -> AsyncGenerator[Client, None]:
        """The session with a server. Raises what starting it raised. Any error in the block but a refusal of the
        protocol ends the session: whoever comes next gets a new one."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED

        kept = self._kept.get(server.label)
        if kept is None or kept.has_ended:
            kept = self._kept[server.label] = _KeptSession(server, self._connect, self._idle_s)
        with kept:
            try:
                yield await asyncio.shield(kept.ready)
            except MCPError as error:
                if error.code == CONNECTION_CLOSED:
                    kept.end()
                raise
            except asyncio.CancelledError:
                raise  # a client left: the others go on
            except BaseException:
                kept.end()
                raise


class _KeptSession:
    """One process and its session, in a task of its own: what was opened in a task has to be closed there."""

    def __init__(self, server: ToolServer, connect: Connect, idle_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[Client] = loop.create_future()
        self.has_ended = False
        self._idle_s = idle_s
        self._users = 0
        self._over = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._task = loop.create_task(self._run(server, connect), name=f"tool server {server.label}")

    def __enter__(self) -> None:
        self._users += 1
        if self._timer is not None:
            self._timer.cancel()

    def __exit__(self, *error: object) -> None:
        self._users -= 1
        if self._users == 0:
            self._timer = asyncio.get_running_loop().call_later(self._idle_s, self.end)

    def end(self) -> None:
        self.has_ended = True
        self._over.set()

    async def _run(self, server: ToolServer, connect: Connect) -> None:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(server.timeout_s):
                    client = await connect(server, stack)
                self.ready.set_result(client)
                await self._over.wait()
        except BaseException as error:
            if not self.ready.done():
                self.ready.set_exception(error)
                self.ready.exception()  # it is told to those who wait; there may be none
            if not isinstance(error, Exception):
                raise
        finally:
            self.has_ended = True
