"""Without the extra `mcp` a tool of that type, and `/mcp`, say what to install."""

from __future__ import annotations

from typing import Any

import pytest

from attack_world import facing
from kvarn.config import extras
from kvarn.tools.mcp import library
from rogue_mcp import RogueMcp, tool


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_MODULES", ("not_installed",))
    monkeypatch.setattr(extras, "find_spec", lambda name: None)


async def test_a_tool_of_the_type_says_so_in_its_item(missing: None) -> None:
    async with facing(RogueMcp([tool("read")])) as world:
        assert await world.open() == {}
        assert "pip install 'kvarn[mcp]'" in str(world.error)


def test_the_server_says_so(client: Any, missing: None) -> None:
    answer = client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (501, "mcp_not_installed")
    assert "pip install 'kvarn[mcp]'" in answer.json()["error"]["message"]
