from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from watched_fleet import ENGINES, Fleet


@pytest.fixture
async def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Fleet, None]:
    monkeypatch.setenv("PYTHONPATH", str(ENGINES))
    monkeypatch.setenv("KVARN_TEST_FAULTS", str(tmp_path))
    made = Fleet(tmp_path)
    yield made
    await asyncio.gather(*(supervisor.stop() for supervisor in made.supervisors.values()))
    for client in made.replicas.values():
        client.close()
