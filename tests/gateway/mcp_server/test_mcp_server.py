"""Kvarn as an MCP server, through clients that are not ours."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult


class Session:
    """Calls of the SDK's client, each from a thread of the test."""

    def __init__(self, url: str, key: str, mode: str = "auto") -> None:
        self.url = url + "/mcp"
        self.key = key
        self.mode = mode

    async def do(self, work: Any) -> Any:
        headers = {"authorization": f"Bearer {self.key}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            transport = streamable_http_client(self.url, http_client=http)
            async with Client(transport, mode=self.mode) as client:
                return await work(client)

    async def call(self, name: str, **arguments: Any) -> tuple[str, bool]:
        result: CallToolResult = await self.do(lambda each: each.call_tool(name, arguments))
        return result.content[0].text, result.is_error


@pytest.fixture(params=["auto", "legacy"])
def session(server: Any, request: pytest.FixtureRequest) -> Session:
    return Session(server.url, "none", request.param)


async def test_a_client_lists_the_tools_and_asks_a_model(client: Any, session: Session) -> None:
    tools = (await session.do(lambda each: each.list_tools())).tools
    files, stores = ["list_files", "read_file"], ["list_vector_stores", "search"]
    assert [tool.name for tool in tools] == ["list_models", "ask_model", *files, *stores]
    text, failed = await session.call("list_models")
    assert not failed
    assert [model["id"] for model in json.loads(text)] == ["tiny", "vec"]
    text, failed = await session.call("ask_model", model="tiny", prompt="hi", max_tokens=4)
    assert (failed, bool(text)) == (False, True)


async def test_files_are_listed_and_read(client: Any, session: Session) -> None:
    form = {"file": ("a.txt", b"x" * 65_530 + "grün".encode()), "purpose": (None, "user_data")}
    made = client.post("/v1/files", files=form).json()
    text, _ = await session.call("list_files")
    assert {"id": made["id"], "filename": "a.txt", "bytes": 65_535} in json.loads(text)["files"]
    text, _ = await session.call("read_file", file_id=made["id"], offset=65_530)
    assert text == "grün"
    resources = (await session.do(lambda each: each.list_resources())).resources
    assert f"kvarn://files/{made['id']}" in [str(resource.uri) for resource in resources]
    read = await session.do(lambda each: each.read_resource(f"kvarn://files/{made['id']}"))
    assert read.contents[0].text.endswith("grün")


async def test_counts_out_of_their_bounds_are_taken_as_the_bounds(client: Any, session: Session) -> None:
    for name in ("a.txt", "b.txt"):
        client.post("/v1/files", files={"file": (name, b"x"), "purpose": (None, "user_data")})
    text, failed = await session.call("list_files", limit=-2)
    assert not failed
    assert len(json.loads(text)["files"]) == 1


async def test_a_resource_that_is_not_there_or_too_large_is_told(client: Any, session: Session) -> None:
    form = {"file": ("a.txt", b"x" * (2**20 + 1)), "purpose": (None, "user_data")}
    large = client.post("/v1/files", files=form).json()["id"]

    async def reads(client: Client) -> None:
        for file_id, says in ((large, "read_file"), ("file-unknown", "no file")):
            with pytest.raises(MCPError, match=says):
                await client.read_resource(f"kvarn://files/{file_id}")

    await session.do(reads)


async def test_a_vector_store_is_searched(client: Any, session: Session) -> None:
    made = client.post("/v1/vector_stores", json={"name": "notes"}).json()
    text, _ = await session.call("list_vector_stores")
    assert {"id": made["id"], "name": "notes", "description": ""} in json.loads(text)
    assert await session.call("search", vector_store_id=made["id"], query="winter") == ("[]", False)
    text, failed = await session.call("search", vector_store_id="vs_unknown", query="winter")
    assert failed
    assert "vs_unknown" in text


async def test_what_is_wrong_is_told_as_a_failed_call(client: Any, session: Session) -> None:
    for name, arguments, says in (
        ("ask_model", {"model": "none", "prompt": "hi"}, "does not exist"),
        ("ask_model", {"prompt": "hi"}, "'model' is missing"),
        ("ask_model", {"model": "tiny", "prompt": 1}, "another type"),
        ("ask_model", {"model": "tiny", "prompt": "hi", "admin": "1"}, "unknown"),
        ("read_file", {"file_id": "file-unknown"}, "no file"),
        ("list_files", {"limit": True}, "another type"),
        ("erase", {}, "no tool 'erase'"),
    ):
        text, failed = await session.call(name, **arguments)
        assert failed, name
        assert says in text, text


async def test_keys_reach_what_their_scopes_allow_and_nothing_of_other_projects(api: Any) -> None:
    root = api.client(api.admin_key)
    form = {"file": ("a.txt", b"secret of the first"), "purpose": (None, "user_data")}
    theirs = root.post("/v1/files", files=form).json()["id"]
    other = root.post("/v1/organization/projects", json={"name": "other"}).json()["id"]
    path = f"/v1/organization/projects/{other}/api_keys"
    scopes = ["endpoints:/mcp", "endpoints:/v1/files", "models:vec"]
    key = root.post(path, json={"name": "k", "scopes": scopes}).json()["value"]
    session = Session(api.server.url, key)
    assert [tool.name for tool in (await session.do(lambda each: each.list_tools())).tools] == [
        "list_files",
        "read_file",
    ]
    assert (await session.call("ask_model", model="tiny", prompt="hi"))[1]
    text, failed = await session.call("read_file", file_id=theirs)
    assert failed
    assert "secret" not in text
    chat_only = root.post(path, json={"name": "c", "scopes": ["endpoints:/v1/chat"]}).json()["value"]
    for bad in (chat_only, "kv-wrong"):
        answer = api.client(bad).post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert answer.status_code in (401, 403)


async def test_the_agents_sdk_uses_it(server: Any) -> None:
    mcp = pytest.importorskip("agents.mcp")
    params = {"url": server.url + "/mcp", "headers": {"authorization": "Bearer none"}}
    async with mcp.MCPServerStreamableHttp(params=params) as used:
        assert "ask_model" in [tool.name for tool in await used.list_tools()]
        result = await used.call_tool("list_models", {})
        assert "tiny" in result.content[0].text


def test_bodies_that_are_no_messages_get_errors_of_the_protocol(client: Any) -> None:
    accept = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    for body in (b"", b"{", b"[]", b'{"jsonrpc": "2.0"}', b"[" * 100_000, b"null", b'{"a": 1}' * 2):
        answer = client.post("/mcp", content=body, headers=accept)
        assert 400 <= answer.status_code < 500, (body[:20], answer.text)
    assert client.get("/mcp").status_code == 405
