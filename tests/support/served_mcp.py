"""A hand-written MCP server beside a gateway in a thread: fixtures of tests over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvarn.config.allowed_places import AllowedPlace
from rogue_mcp import RogueMcp, tool
from scripted_server import Script, ScriptedServer, scripted_server


@contextmanager
def served(server: Any, script: Script) -> Iterator[ScriptedServer]:
    """Serve a script in the gateway's event loop; the gateway may ask it."""
    manager = scripted_server(script)
    made = server.do(manager.__aenter__())
    allowed = server.gateway.control.tool_servers.provider.http.allowed
    place = AllowedPlace.parse(made.place)
    allowed.append(place)
    try:
        yield made
    finally:
        allowed.remove(place)
        server.do(manager.__aexit__(None, None, None))


def notes() -> RogueMcp:
    return RogueMcp([tool("read", "Reads a note.", properties={"path": {"type": "string"}}), tool("erase")])
