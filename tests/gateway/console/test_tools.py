"""Tools of a project as the console shows them: types, servers, calls, and approvals that wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fake_tools import FakeProvider, FakeTool
from kvarn.store.owner import Role
from kvarn.tools.server import ToolServer
from rogue_mcp import RogueMcp, tool
from scripted_answers import called, script
from served_mcp import served

TOOLS = "/console/api/tools"
SERVERS = "/v1/organization/projects/proj_default/tool_servers"
PAY = {"type": "payments"}


@pytest.fixture
def notes(server: Any, client: httpx.Client) -> Iterator[tuple[RogueMcp, str]]:
    """A registered server, and its id."""
    rogue = RogueMcp([tool("read"), tool("write", "Writes.")])
    with served(server, rogue) as made:
        identity = client.post(SERVERS, json={"name": "notes", "url": made.url}).json()["id"]
        yield rogue, identity
    client.delete(f"{SERVERS}/{identity}")


def test_types_and_servers_are_listed_and_a_server_is_asked(
    server: Any, client: httpx.Client, notes: tuple[RogueMcp, str]
) -> None:
    rogue, identity = notes
    kinds = {each["type"]: each for each in client.get(TOOLS).json()["kinds"]}
    assert {"calculator", "clock", "code_interpreter", "file_search", "mcp", "web_search"} <= set(kinds)
    assert kinds["clock"] == {"type": "clock", "problem": None, "allowed": True}
    assert "No search server is registered" in kinds["web_search"]["problem"]
    rogue.tools = [tool("read"), tool("write", "Writes all.")]
    asked = client.get(f"{TOOLS}/servers/notes").json()
    assert (asked["asked"], asked["error"], asked["seconds"] >= 0) == (True, None, True)
    assert {each["name"]: each["status"] for each in asked["tools"]["data"]} == {"read": "approved", "write": "changed"}
    (row,) = client.get(TOOLS).json()["servers"]
    assert (row["id"], row["approved"], row["waiting"]) == (identity, ["read", "write"], {"write": "changed"})
    assert client.get(f"{TOOLS}/servers/none").status_code == 404
    with server.add_tenant("tool-member", role=Role.MEMBER) as member:
        assert member.get(TOOLS).json()["servers"] == [], "it is another project's"
        assert member.get(f"{TOOLS}/servers/notes").status_code == 404
        assert member.get(TOOLS, params={"project": "proj_default"}).status_code == 403


def test_urls_of_the_operators_requests_are_shown_to_its_administrators_alone(
    server: Any, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {"openapi": "3.1.0", "servers": [{"url": "https://inside.example"}]}
    document |= {"paths": {"/bills": {"get": {"operationId": "list_bills"}}}}
    configured = server.gateway.control.tool_servers.provider.servers.configured
    monkeypatch.setitem(configured, "bills", ToolServer("bills", "http", document=document))
    (tool,) = client.get(f"{TOOLS}/servers/bills").json()["tools"]["data"]
    assert (tool["name"], tool["request"]) == ("list_bills", "GET https://inside.example/bills")
    with server.add_tenant("bills-admin", role=Role.ADMIN) as admin:
        (told,) = admin.get(f"{TOOLS}/servers/bills").json()["tools"]["data"]
        assert told == tool | {"request": None}


def test_a_server_that_does_not_answer_says_why(client: httpx.Client, notes: tuple[RogueMcp, str]) -> None:
    client.post(f"{SERVERS}/{notes[1]}", json={"timeout_seconds": 5})
    notes[0].tools = [{"name": 7}]
    asked = client.get(f"{TOOLS}/servers/notes").json()
    assert asked["tools"] is None and "does not tell its tools" in asked["error"]


def test_calls_and_approvals_are_listed_until_they_are_answered(
    server: Any, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay = FakeTool("pay", needs_approval=True, item_fields={"server_label": "bank", "name": "transfer"})
    monkeypatch.setitem(server.gateway.tools._providers, "payments", FakeProvider([pay]))
    script(server, called("pay", amount=5), called("pay", amount=6), "Done.")
    ask = {"model": "tiny", "input": "Pay.", "tools": [PAY]}
    with server.add_tenant("payer", role=Role.MEMBER) as payer, server.add_tenant("program", role=Role.SERVICE) as bot:
        first, second = (payer.post("/v1/responses", json=ask).json() for _ in range(2))
        waiting = payer.get(f"{TOOLS}/approvals").json()["data"]
        assert {each["response_id"] for each in waiting} == {first["id"], second["id"]}
        row = next(each for each in waiting if each["response_id"] == first["id"])
        assert (row["server_label"], row["name"], row["arguments"]) == ("bank", "transfer", '{"amount": 5}')
        assert row["of_project"], "the client named no server by its URL"
        for response, approve in ((first, True), (second, False)):
            request = response["output"][-1]["id"]
            answer = {"type": "mcp_approval_response", "approval_request_id": request, "approve": approve}
            body = {"model": "tiny", "tools": [PAY], "previous_response_id": response["id"], "input": [answer]}
            assert payer.post("/v1/responses", json=body).status_code == 200
        assert payer.get(f"{TOOLS}/approvals").json()["data"] == []
        (call,) = payer.get(f"{TOOLS}/calls").json()["data"]
        assert (call["type"], call["name"], call["status"], call["approved"]) == ("payments", "pay", "completed", True)
        assert payer.get(f"{TOOLS}/calls", params={"status": "failed"}).json()["data"] == []
        assert bot.get(f"{TOOLS}/approvals").status_code == 403
        assert bot.get(f"{TOOLS}/calls").json()["data"] == []
