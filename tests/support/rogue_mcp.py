"""An MCP server written by hand, which a test can make lie: its tools, what they answer, how it answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from scripted_server import Asked, answer


def tool(name: str, description: str = "", annotations: Any = None, **schema: Any) -> dict[str, Any]:
    told = {"name": name, "description": description, "inputSchema": {"type": "object", **schema}}
    return told | ({"annotations": annotations} if annotations else {})


@dataclass
class RogueMcp:
    """The script of a `scripted_server`."""

    tools: list[dict[str, Any]] = field(default_factory=list)
    result: Callable[[str, dict[str, Any]], dict[str, Any]] = lambda name, arguments: text_result(name)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[Asked] = field(default_factory=list)

    async def __call__(self, asked: Asked) -> AsyncIterator[bytes]:
        self.headers.append(asked)
        if not asked.head.startswith("POST"):
            yield answer(b"", status="405 Method Not Allowed")
            return
        message = json.loads(asked.body)
        if "id" not in message:
            yield answer(b"", status="202 Accepted")
            return
        reply = {"jsonrpc": "2.0", "id": message["id"], **self._reply(message)}
        yield answer(json.dumps(reply).encode(), "content-type: application/json")

    def _reply(self, message: dict[str, Any]) -> dict[str, Any]:
        match message["method"]:
            case "initialize":
                told = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
                return {"result": told | {"serverInfo": {"name": "rogue", "version": "1"}}}
            case "tools/list":
                return {"result": {"tools": self.tools}}
            case "tools/call":
                name, arguments = message["params"]["name"], message["params"].get("arguments") or {}
                self.calls.append((name, arguments))
                return self.result(name, arguments)
        return {"error": {"code": -32601, "message": "Method not found"}}


def text_result(text: str, **fields: Any) -> dict[str, Any]:
    return {"result": {"content": [{"type": "text", "text": text}], **fields}}
