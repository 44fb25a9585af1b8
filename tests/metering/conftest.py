from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """Wait, on the event loop, until a condition holds."""

    async def wait(condition: Callable[[], bool], seconds: float = 120.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  what is waited for has no event
                await asyncio.sleep(0.01)

    return wait
