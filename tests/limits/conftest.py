"""A Redis of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def own_redis(tmp_path: Path, redis_maker: Callable[[Path], Any]) -> Iterator[Any]:
    """A running Redis that the test may kill and start again."""
    service = redis_maker(tmp_path)
    service.start()
    yield service
    service.kill()
