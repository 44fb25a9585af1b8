"""Conversations of a project are listed; their items are read by those who may, and the audit log says by whom."""

from __future__ import annotations

from typing import Any

import httpx

from kvarn.store.owner import Role

CONVERSATIONS = "/console/api/conversations"


def begin(client: httpx.Client, topic: str, *texts: str) -> str:
    items = [{"type": "message", "role": "user", "content": text} for text in texts]
    made = client.post("/v1/conversations", json={"metadata": {"topic": topic}, "items": items})
    assert made.status_code == 200, made.text
    return str(made.json()["id"])


def test_an_administrator_reads_those_of_a_project(server: Any) -> None:
    with server.add_tenant("acme-talks") as acme:
        made = [begin(acme, f"t{n}", *["hello"] * n) for n in range(1, 4)]
        first = acme.get(CONVERSATIONS, params={"limit": 2}).json()
        rest = acme.get(CONVERSATIONS, params={"limit": 2, "after": first["last_id"]}).json()
        rows = {row["id"]: row for row in first["data"] + rest["data"]}
        assert set(rows) == set(made) and (first["has_more"], rest["has_more"]) == (True, False)
        assert [(rows[each]["items"], rows[each]["metadata"]) for each in made] == [
            (n, {"topic": f"t{n}"}) for n in range(1, 4)
        ]
        assert rows[made[0]]["created_at"] <= rows[made[0]]["changed_at"]
        (item,) = acme.get(f"/v1/conversations/{made[0]}/items").json()["data"]
        acme.delete(f"/v1/conversations/{made[1]}/items/" + last_item(acme, made[1]))
        opened = acme.get(f"{CONVERSATIONS}/{made[0]}").json()
        assert (opened["data"], opened["conversation"]["items"]) == ([item], 1)
        assert acme.get(f"{CONVERSATIONS}/{made[1]}").json()["conversation"]["items"] == 1, "one was deleted"
        told = [each["type"] for each in acme.get("/v1/organization/audit_logs").json()["data"]]
        assert told.count("prompts.read") == 2
        other = acme.post("/v1/organization/projects", json={"name": "pilot"}).json()["id"]
        assert acme.get(CONVERSATIONS, params={"project": other}).json()["data"] == []
        assert acme.get(f"{CONVERSATIONS}/{made[0]}", params={"project": other}).status_code == 404


def last_item(client: httpx.Client, conversation: str) -> str:
    return str(client.get(f"/v1/conversations/{conversation}/items").json()["last_id"])


def test_nobody_reads_anothers(server: Any, client: httpx.Client) -> None:
    with (
        server.add_tenant("blue-talks") as blue,
        server.add_tenant("member-talks", role=Role.MEMBER) as member,
        server.add_tenant("service-talks", role=Role.SERVICE) as service,
    ):
        theirs, programs = begin(blue, "secret", "hello"), begin(service, "own", "hello")
        project = server.authenticator.principals["blue-talks"].project_id
        assert member.get(CONVERSATIONS).json()["data"] == []
        assert member.get(f"{CONVERSATIONS}/{theirs}").status_code == 404
        assert member.get(CONVERSATIONS, params={"project": project}).status_code == 403
        assert client.get(CONVERSATIONS, params={"project": project}).status_code == 404, "the platform's, neither"
        assert [row["id"] for row in service.get(CONVERSATIONS).json()["data"]] == [programs]
        assert service.get(f"{CONVERSATIONS}/{programs}").status_code == 403
