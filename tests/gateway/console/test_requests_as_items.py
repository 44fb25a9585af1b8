"""A kept request becomes an item of an evaluation set, by those who may read its prompt."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway_fixtures import wait_for
from kvarn.gateway.console.evaluation_items import item_of
from kvarn.store.owner import Role
from kvarn.wire.openai.errors import ApiError

API = "/console/api/requests"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def ask(server: Any, client: httpx.Client, path: str, **body: Any) -> str:
    """Ask, and wait until the request is kept; returns its id."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    record = str(answer.json()["id"]).replace("_", "-").partition("-")[2]

    def is_kept() -> bool:
        server.do(server.gateway.control.traces.keeper.write())
        return client.get(f"{API}/{record}").status_code == 200

    wait_for(is_kept, "the kept request")
    return record


def test_what_a_client_stored_becomes_an_item(server: Any, client: httpx.Client) -> None:
    with server.add_tenant("items", role=Role.MEMBER) as member, server.add_tenant("items-other") as other:
        chat = ask(server, member, "/v1/chat/completions", **CHAT, store=True)
        response = ask(server, member, "/v1/responses", model="tiny", input="hi", instructions="Be kind.")
        later = ask(
            server, member, "/v1/responses", model="tiny", input="go on", previous_response_id=f"resp_{response}"
        )
        unkept = ask(server, member, "/v1/chat/completions", **CHAT)
        body = {"set": "kept", "expected": "hello"}
        added = [member.post(f"{API}/{name}/item", json=body).json() for name in (chat, response)]
        assert [each["num_items"] for each in added] == [1, 2]
        first, second = member.get("/v1/evaluations/kept/versions/2").json()["items"]
        assert (first["messages"], first["expected"]) == (CHAT["messages"], "hello")
        assert second["messages"] == [{"role": "system", "content": "Be kind."}, *CHAT["messages"]]
        refused = [member.post(f"{API}/{name}/item", json=body) for name in (later, unkept)]
        assert [each.status_code for each in refused] == [400, 404]
        assert "goes on from others" in refused[0].text and "prompt_not_kept" in refused[1].text
        assert other.post(f"{API}/{chat}/item", json=body).status_code == 404
        assert client.post(f"{API}/{chat}/item", json=body).status_code == 403, "another organisation's"


@pytest.mark.parametrize(
    "asked",
    [
        None,
        [],
        "",
        ["a", "b"],
        [{"type": "function_call", "name": "f"}],
        [1, 2],
        [{"role": "user", "content": "x"}] * 300,
    ],
)
def test_what_cannot_be_asked_again_is_refused(asked: Any) -> None:
    with pytest.raises(ApiError) as refused:
        item_of(asked, "x")
    assert refused.value.status == 400
