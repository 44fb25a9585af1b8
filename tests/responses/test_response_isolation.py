"""Nobody finds what another has: not another organisation, not another project of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from kvarn.store.models import Project
from kvarn.store.owner import Owner

HI = {"model": "tiny", "input": "hi"}


@pytest.fixture(params=["organization", "project"])
def clients(kept: Any, request: pytest.FixtureRequest) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Two who may know nothing of each other: of two organisations, or of two projects of one."""
    mine = kept.add_tenant("mine")
    other = kept.add_tenant("other") if request.param == "organization" else _other_project(kept)
    with mine, other:
        yield mine, other


def _other_project(server: Any) -> httpx.Client:
    principal = server.authenticator.principals["mine"]
    owner = Owner(principal.organization_id, "proj_second")

    async def add() -> None:
        async with server.gateway.store.transaction() as session:
            session.add(
                Project(id=owner.project_id, organization_id=owner.organization_id, name="second", created_at=1)
            )

    server.do(add())
    server.authenticator.principals["second"] = replace(principal, owner=owner)
    client: httpx.Client = server.client("second")
    return client


def test_anothers_things_are_as_unknown_as_none(clients):
    mine, other = clients
    made = mine.post("/v1/responses", json=HI).json()
    running = mine.post("/v1/responses", json={**HI, "background": True}).json()
    conversation = mine.post("/v1/conversations", json={"items": [{"role": "user", "content": "secret"}]}).json()
    item = mine.get(f"/v1/conversations/{conversation['id']}/items").json()["data"][0]
    said = made["output"][0]["id"]
    at_response, at_conversation = f"/v1/responses/{made['id']}", f"/v1/conversations/{conversation['id']}"
    message = {"items": [{"role": "user", "content": "x"}]}

    asked: list[tuple[str, str, Any]] = [
        ("GET", at_response, None),
        ("GET", f"{at_response}?stream=true", None),
        ("GET", f"{at_response}/input_items", None),
        ("DELETE", at_response, None),
        ("POST", f"/v1/responses/{running['id']}/cancel", None),
        ("GET", f"/v1/responses/{running['id']}?stream=true", None),
        ("POST", "/v1/responses", {**HI, "previous_response_id": made["id"]}),
        ("POST", "/v1/responses", {**HI, "previous_response_id": made["id"], "background": True}),
        ("POST", "/v1/responses", {**HI, "conversation": conversation["id"]}),
        ("POST", "/v1/responses", {**HI, "conversation": conversation["id"], "stream": True}),
        ("POST", "/v1/responses", {**HI, "input": [{"type": "item_reference", "id": said}]}),
        ("POST", "/v1/responses", {**HI, "input": [{"type": "item_reference", "id": item["id"]}]}),
        ("POST", "/v1/responses/input_tokens", {"input": "x", "previous_response_id": made["id"]}),
        ("POST", "/v1/responses/input_tokens", {"input": "x", "conversation": conversation["id"]}),
        ("POST", "/v1/conversations", {"items": [{"type": "item_reference", "id": said}]}),
        ("GET", at_conversation, None),
        ("POST", at_conversation, {"metadata": {}}),
        ("DELETE", at_conversation, None),
        ("GET", f"{at_conversation}/items", None),
        ("POST", f"{at_conversation}/items", message),
        ("GET", f"{at_conversation}/items/{item['id']}", None),
        ("DELETE", f"{at_conversation}/items/{item['id']}", None),
    ]
    own_conversation = other.post("/v1/conversations", json={}).json()["id"]
    asked.append(("GET", f"/v1/conversations/{own_conversation}/items/{item['id']}", None))
    asked.append(("GET", f"/v1/conversations/{own_conversation}/items?after={item['id']}", None))
    for method, path, body in asked:
        answer = other.request(method, path, json=body)
        assert answer.status_code == 404, f"{method} {path} {body}: {answer.text}"
        assert answer.json()["error"]["type"] == "invalid_request_error" and "secret" not in answer.text
        nobodys = path.replace(made["id"], "resp_" + "0" * 32).replace(conversation["id"], "conv_" + "0" * 32)
        assert other.request(method, nobodys, json=body).status_code == 404
    # And nothing of it was touched.
    assert mine.get(at_response).json() == made
    assert len(mine.get(f"{at_conversation}/items").json()["data"]) == 1
    assert mine.get(f"/v1/responses/{running['id']}").json()["status"] != "cancelled"


def test_an_item_of_the_same_name_is_ones_own(clients):
    for client, text in zip(clients, ("mine", "others"), strict=True):
        item = {"role": "user", "content": text, "id": "msg_same"}
        client.post("/v1/conversations", json={"items": [item]}).raise_for_status()
    for client, text in zip(clients, ("mine", "others"), strict=True):
        made = client.post("/v1/conversations", json={"items": [{"type": "item_reference", "id": "msg_same"}]}).json()
        items = client.get(f"/v1/conversations/{made['id']}/items").json()["data"]
        assert [each["content"][0]["text"] for each in items] == [text]
