"""Waiting for what other processes do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvarn.wire.messages import Submit


async def until(condition: Callable[[], object], what: str = "what is waited for", within_s: float = 120.0) -> None:
    """Wait until it holds; fails where that takes too long."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.02)


async def collect(replica: Any, request: Submit) -> list[int]:
    """The tokens of a whole answer of a `ReplicaClient`."""
    return [token async for delta in replica.generate(request) for token in delta.token_ids]


def lives(pid: int) -> bool:
    """Whether a process runs: one that has ended and was not awaited does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """All processes below one."""
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = each.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has ended
        if int(parent) == pid and state != "Z":
            found += [int(each.parent.name), *children(int(each.parent.name))]
    return found
