"""What a viewer must not learn, and what nobody may do to others, by the console's routes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import httpx
import pytest

from gateway_fixtures import wait_for
from kept_rows import steps_of
from key_server import KeyServer
from kvarn.gateway.console.streams import MAX_STREAMS
from kvarn.store.owner import Role, Scopes
from kvarn.wire.kv_map import KVPath, PathBlock
from kvarn.wire.messages import AdapterInfo

API, BIG = "/console/api", "9" * 30
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def test_a_member_reads_no_requests_of_other_projects_from_steps(server: Any, client: httpx.Client) -> None:
    with server.add_tenant("one-project", role=Role.MEMBER) as member:
        record = member.post("/v1/chat/completions", json=CHAT).json()["id"][9:]
        own = server.authenticator.principals["one-project"].organization_id
        server.chat.steps_of[record] = steps_of(3, own, own)

        def is_kept() -> bool:
            server.do(server.gateway.control.traces.keeper.write())
            return member.get(f"{API}/requests/{record}").status_code == 200

        wait_for(is_kept, "the kept request")
        turns = member.get(f"{API}/requests/{record}/steps").json()["turns"][record]["turns"]
        assert [turn["request_id"] for turn in turns] == ["t0", ""]


def test_blocks_do_not_name_adapters_of_others(server: Any, client: httpx.Client, monkeypatch: Any) -> None:
    for block, name in ((9, "theirs"), (10, "everyones")):
        path = [PathBlock(block, 1, 0)]
        server.chat.paths[block] = KVPath(
            block=block, tenant="", adapter=name, is_adapter=True, depth=0, path=path, request_ids=[]
        )
    known = {
        "theirs": AdapterInfo(name="theirs", path="", organizations=["org-x"]),
        "everyones": AdapterInfo(name="everyones", path=""),
    }
    monkeypatch.setattr(type(server.served["tiny"]), "adapters", known)
    with server.add_tenant("no-adapter") as other:
        shown = [other.get(f"{API}/live/block", params={"block": block}).json()["adapter"] for block in (9, 10)]
    assert shown == [None, "everyones"]
    assert client.get(f"{API}/live/block", params={"block": 9}).json()["adapter"] == "theirs"


def test_models_that_a_key_may_not_ask_are_not_named(server: Any) -> None:
    server.do(server.gateway.control.history.sample())
    with server.add_tenant("only-vec", scopes=Scopes(models=("vec",))) as viewer:
        told = viewer.get(f"{API}/overview").json()
        assert [row["name"] for row in told["models"]] == ["vec"]
        assert "tiny" not in str(told["state"]) and "tiny" not in {mark["model"] for mark in told["history"]["marks"]}
        assert "tiny" not in viewer.get(f"{API}/series", params={"names": "running"}).json()["recent"]
        for route in ("overview", "series"):
            for model in ("tiny", "gone"):
                refused = viewer.get(f"{API}/{route}", params={"model": model})
                assert refused.status_code == 404 and "vec" in refused.text, refused.text
                assert "tiny" not in refused.text.replace("'tiny'", "", 1)


@pytest.mark.parametrize("path", [f"review/{BIG}", f"review?after={BIG}"])
def test_numbers_that_no_column_holds_are_refused(client: httpx.Client, path: str) -> None:
    assert client.get(f"{API}/{path}").status_code == 400


def test_numbers_of_evaluations_are_bounded(client: httpx.Client) -> None:
    base = "/v1/evaluations/bounded"
    client.post("/v1/evaluations", json={"name": "bounded", "items": [{"prompt": "a", "expected": "b"}]})
    run = client.post(f"{base}/runs", json={"model": "tiny"}).json()["id"]
    for path in (f"versions/{BIG}", f"versions?after={BIG}", f"runs/{run}/results?after={BIG}"):
        assert client.get(f"{base}/{path}").status_code == 400, path
    assert client.post(f"{base}/runs", json={"model": "tiny", "set_version": 10**30}).status_code == 400
    client.delete(base)


def test_a_page_elsewhere_cannot_lock_people_out(api: KeyServer) -> None:
    browser = api.client(None)
    for _ in range(21):
        assert browser.get(f"{API}/oidc/start").status_code == 404
    assert browser.post(f"{API}/session", json={"key": api.admin_key}).status_code == 200


def test_one_viewer_has_only_so_many_streams(server: Any, client: httpx.Client) -> None:
    counts: Counter[Any] = server.app.state.console_streams
    wait_for(lambda: not counts, "the streams of the tests before to end")
    with client.stream("GET", f"{API}/models/stream") as answer:
        lines = answer.iter_lines()  # forgotten, it would close the stream
        next(lines)
        ((holder, count),) = counts.items()
        assert count == 1
        counts[holder] += MAX_STREAMS - 1
        refused = client.get(f"{API}/models/stream")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_streams")
        counts[holder] -= MAX_STREAMS - 1
    wait_for(lambda: not counts, "the stream to end")
