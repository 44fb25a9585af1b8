from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from kvarn.limits.counts import Timing
from limit_reservations import InMainProcess, InProcess, InRedis, Place


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture(params=["in process", "main process", "Redis"])
def place(request: pytest.FixtureRequest) -> Place:
    """Each place that counts, with nothing counted yet."""
    if request.param == "Redis":
        return InRedis(Timing(), request.getfixturevalue("redis_client"))
    return (InProcess if request.param == "in process" else InMainProcess)(Timing())
