from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def cached(server: Any, request: Any) -> Iterator[Any]:
    """A client of an organisation of its own, whose project has the exact cache."""
    with server.add_tenant(request.node.name, response_cache="exact") as client:
        yield client
