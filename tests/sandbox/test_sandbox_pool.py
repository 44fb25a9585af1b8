"""Processes that are used again, and those that start while the server ends."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from kvarn.sandbox.errors import ClosedError, LimitPassedError
from kvarn.sandbox.pool import SandboxPool
from kvarn.sandbox.process import SandboxLimits, SandboxProcess

LIMITS = SandboxLimits(timeout_s=60.0, memory_bytes=256 * 2**20)
MODULE = """
import os, signal

kept, timers = [], []

class Reply(bytes):
    def __len__(self):
        timers.append(signal.getitimer(signal.ITIMER_PROF)[0])
        return super().__len__()

def answer(payload):
    if payload == b"timers":
        return repr(timers).encode()
    kept.append(bytes(int(payload) * 2**20))
    return Reply(str(os.getpid()).encode())
"""


@pytest.fixture
async def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[SandboxPool, None]:
    (tmp_path / "keeps_memory.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = SandboxPool("keeps_memory", LIMITS, size=1)
    yield made
    await made.close()


async def test_work_that_finds_no_memory_behind_other_work_is_done_in_a_new_process(pool: SandboxPool) -> None:
    first = await pool.call("a", b"150")
    second = await pool.call("b", b"150")
    assert first != second == str(pool.pids[0]).encode()
    with pytest.raises(LimitPassedError, match="in 256 MiB of memory"):
        await pool.call("b", b"300")
    assert await pool.call("a", b"150") not in (first, second)


async def test_the_timer_of_a_request_is_off_before_its_reply_is_out(pool: SandboxPool) -> None:
    await pool.call("a", b"1")
    timers = await pool.call("a", b"timers")
    assert timers and set(timers.decode().strip("[]").split(", ")) == {"0.0"}


async def test_a_process_that_starts_while_it_is_closed_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox, started, start = SandboxProcess("json", LIMITS), list[Process](), asyncio.create_subprocess_exec

    async def closed_meanwhile(*arguments: Any, **options: Any) -> Process:
        started.append(await start(*arguments, **options))
        await sandbox.close()
        return started[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", closed_meanwhile)
    with pytest.raises(ClosedError):
        await sandbox.start()
    assert sandbox.pid is None and started[0].returncode is not None


async def test_what_work_tells_comes_before_its_reply_and_never_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tells.py").write_text(
        "from kvarn.sandbox.worker import tell\n"
        "def answer(payload):\n    for each in payload:\n        tell(bytes([each]) * each)\n    return payload\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process, told = SandboxProcess("tells", LIMITS), list[bytes]()
    try:
        assert await process.call(bytes([3, 0, 1]), told.append) == bytes([3, 0, 1])
        assert told == [bytes([3, 3, 3]), b"", bytes([1])]
        assert await process.call(bytes([2])) == bytes([2])
    finally:
        await process.close()
