"""Sessions with servers that are commands, without processes: when one begins, serves and ends."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED

from kvarn.tools.mcp.commands import CommandSessions
from kvarn.tools.server import ToolServer

SERVER = ToolServer("local", command=["local"])


class Commands:
    """Counts the commands that run."""

    def __init__(self, fails: bool = False) -> None:
        self.begun = 0
        self.ended = asyncio.Event()
        self.fails = fails

    async def connect(self, server: ToolServer, stack: AsyncExitStack) -> Any:
        self.begun += 1
        if self.fails:
            raise FileNotFoundError(server.label)
        stack.callback(self.ended.set)
        return self.begun


async def use(sessions: CommandSessions, error: Exception | None = None) -> int:
    async with sessions.client(SERVER) as client:
        if error is not None:
            raise error
        return cast(int, client)


async def test_all_who_come_at_once_and_later_use_one_process() -> None:
    commands = Commands()
    sessions = CommandSessions(commands.connect)
    assert await asyncio.gather(*[use(sessions) for _ in range(3)]) == [1, 1, 1]
    assert await use(sessions) == 1
    assert not commands.ended.is_set()


async def test_a_process_that_nobody_uses_ends() -> None:
    commands = Commands()
    sessions = CommandSessions(commands.connect, idle_s=0)
    assert await use(sessions) == 1
    await asyncio.wait_for(commands.ended.wait(), 60)
    assert await use(sessions) == 2


@pytest.mark.parametrize("error", [MCPError(CONNECTION_CLOSED, "Connection closed"), BrokenPipeError()])
async def test_after_a_broken_session_the_next_use_starts_another_process(error: Exception) -> None:
    commands = Commands()
    sessions = CommandSessions(commands.connect)
    with pytest.raises(type(error)):
        await use(sessions, error)
    await asyncio.wait_for(commands.ended.wait(), 60)
    assert await use(sessions) == 2


async def test_a_refusal_and_a_client_that_leaves_end_nothing() -> None:
    commands = Commands()
    sessions = CommandSessions(commands.connect)
    with pytest.raises(MCPError):
        await use(sessions, MCPError(-32602, "no such tool"))
    with pytest.raises(asyncio.CancelledError):
        await use(sessions, cast(Exception, asyncio.CancelledError()))
    assert await use(sessions) == 1


async def test_a_command_that_cannot_be_run_is_told_to_each_and_tried_again() -> None:
    commands = Commands(fails=True)
    sessions = CommandSessions(commands.connect)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            await use(sessions)
    commands.fails = False
    assert await use(sessions) == 3
