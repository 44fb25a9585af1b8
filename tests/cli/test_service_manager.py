from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator

import pytest

from kvarn.cli.service_manager import notify, send_heartbeats

NAME = f"kvarn-test-{os.getpid()}"


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A manager that listens under one of Linux' abstract names, as systemd may."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{NAME}")
        listener.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{NAME}")
        yield listener


def test_the_manager_is_told_in_one_datagram(manager):
    notify("READY=1", "STATUS=serves chat")
    assert manager.recv(4096) == b"READY=1\nSTATUS=serves chat"


def test_a_manager_that_is_gone_is_logged_and_ends_nothing(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify("READY=1")
    assert "cannot be told READY=1" in caplog.text


async def test_heartbeats_go_on_while_the_loop_turns(manager, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "1000")
    sending = asyncio.create_task(send_heartbeats())
    for _ in range(3):
        assert await asyncio.to_thread(manager.recv, 4096) == b"WATCHDOG=1"
    sending.cancel()


@pytest.mark.parametrize("variables", [{}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}])
async def test_nobody_is_told_who_does_not_ask(manager, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    await send_heartbeats()
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(4096)
