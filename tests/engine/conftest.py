"""The engine's world, as a fixture."""

from __future__ import annotations

import pytest

from engine_world import World


@pytest.fixture(scope="session")
def make_world() -> type[World]:
    """Builds a `World`; keywords are those of its constructor and `EngineConfig` fields."""
    return World
