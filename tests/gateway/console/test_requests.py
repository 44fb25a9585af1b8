"""Requests that are over are found in the console, each with why it took as long as it did; nobody sees another's."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import StringIO
from itertools import pairwise
from typing import Any

import httpx
import pytest

from gateway_fixtures import wait_for
from kept_rows import kept_row, steps_of
from kvarn.gateway.console import request_contents
from kvarn.gateway.console.api import requests as routes
from kvarn.gateway.console.viewer import ANOTHER_TENANT
from kvarn.gateway.dependencies import actor_of
from kvarn.store.owner import ANYBODY, Role
from kvarn.store.repositories.kept_requests import add_kept

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
API = "/console/api"


@dataclass
class Kept:
    """The shared gateway's kept requests, as the administrator of the platform sees them, unless told otherwise."""

    server: Any
    client: httpx.Client
    after: dict[str, Any] = field(default_factory=dict)

    def list(self, client: httpx.Client | None = None, **query: Any) -> list[dict[str, Any]]:
        """Rows of requests of this test."""
        answer = (client or self.client).get(f"{API}/requests", params=self.after | query)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def detail(self, name: str, client: httpx.Client | None = None, more: str = "") -> dict[str, Any]:
        answer = (client or self.client).get(f"{API}/requests/{name}{more}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait(self, count: int, **query: Any) -> list[dict[str, Any]]:
        """The rows, once there are so many: a client may have the last byte before its request is over."""
        found: list[list[dict[str, Any]]] = []

        def are_there() -> bool:
            self.server.do(self.server.gateway.control.traces.keeper.write())
            found.append(self.list(**query))
            return len(found[-1]) >= count

        wait_for(are_there, f"{count} kept requests")
        assert len(found[-1]) == count
        return found[-1]


@pytest.fixture
def kept(server: Any, client: httpx.Client) -> Iterator[Kept]:
    """Without those of the tests before."""
    yield Kept(server, client, {"since": server.gateway.store.now()})


def test_a_chat_is_found_by_all_that_is_known_of_it(kept: Kept, client: httpx.Client) -> None:
    body = CHAT | {"user": "ada", "prompt_cache_key": "s-1", "metadata": {"case": "7"}, "speed": 3}
    answer = client.post("/v1/chat/completions", json=body)
    client.post("/v1/completions", json={"model": "tiny", "prompt": "x", "max_tokens": 1})
    kept.wait(2)
    record = answer.json()["id"].removeprefix("chatcmpl-")
    usage = answer.json()["usage"]
    for query in (
        {"id": record},
        {"id": answer.json()["id"]},
        {"id": answer.headers["x-request-id"][:24], "user": "ada"},
        {"session": "s-1"},
        {"user": "ada"},
        {"q": "ada"},
        {"q": "s-1", "user": "ada"},
        {"endpoint": "/v1/chat/completions"},
        {"endpoint": "/v1/chat/completions", "status": "2xx", "model": "tiny", "order": "slowest"},
    ):
        (row,) = kept.list(**query)
        assert row["id"] == record, query
    assert (row["request_id"], row["status"], row["outcome"]) == (answer.headers["x-request-id"], 200, "finished")
    assert (row["model"], row["user"], row["session"], row["key"]) == ("tiny", "ada", "s-1", None)
    assert (row["input_tokens"], row["output_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert 0 < row["ttft_s"] <= row["total_s"]
    found = kept.detail(record)
    assert (found["request"], found["currency"]) == (row, "usd")
    assert found["metadata"] == {"case": "7"}
    assert found["warnings"] == ["ignored unknown field"], "the field's name is the client's text"
    assert [event["name"] for event in found["events"]][:2] == ["received", "authenticated"]
    assert found["spans"][0]["name"] == "POST /v1/chat/completions"
    assert found["spans"][0]["end_s"] == pytest.approx(row["total_s"], abs=1e-5)
    explanation = found["explanation"]
    assert explanation["sentence"] and explanation["total_s"] == pytest.approx(row["total_s"], abs=1e-5)
    parts = explanation["parts"]
    assert sum(part["end_s"] - part["begin_s"] for part in parts) == pytest.approx(row["total_s"], abs=1e-5)
    assert all(one["end_s"] == other["begin_s"] for one, other in pairwise(parts))
    assert not found["with_steps"]
    cause = explanation["cause"]
    assert (row["cause"], row["cause_s"]) == (cause["code"], pytest.approx(cause["seconds"], abs=1e-5))
    assert record in [each["id"] for each in kept.list(cause=cause["code"])]
    assert kept.list(cause="failover") == []
    assert client.get(f"{API}/requests", params={"cause": "the moon"}).status_code == 400


def test_a_request_tells_what_the_response_cache_did(kept: Kept) -> None:
    with kept.server.add_tenant("cached-requests", response_cache="exact") as tenant:
        asked = [tenant.post("/v1/chat/completions", json=CHAT | {"temperature": 0}) for _ in range(2)]
        kept.wait(2)
        ids = [answer.json()["id"].removeprefix("chatcmpl-") for answer in asked]
        first, second = (kept.detail(each, tenant)["cache"] for each in ids)
    assert (first["result"], second["result"], second["kind"]) == ("miss", "hit", "exact")
    assert first["key"] == second["key"] and int(second["age"]) >= 0


def test_what_was_refused_and_what_failed_is_kept_with_its_code(kept: Kept, client: httpx.Client) -> None:
    client.post("/v1/chat/completions", json=CHAT | {"model": "nobody"})
    kept.server.chat.lose_after = 2
    client.post("/v1/chat/completions", json=CHAT)
    kept.server.chat.lose_after = None
    failed, refused = kept.wait(2)
    assert (refused["status"], refused["error_code"], refused["reason"]) == (404, "model_not_found", "refused")
    assert (failed["status"], failed["outcome"], failed["reason"]) == (503, "failed", "error")
    assert failed["error_code"]
    assert [row["id"] for row in kept.list(status="5xx")] == [failed["id"]]
    assert [row["id"] for row in kept.list(outcome="refused")] == [refused["id"]]


def test_a_stream_that_broke_off_has_failed_though_its_status_was_sent(kept: Kept, client: httpx.Client) -> None:
    kept.server.chat.lose_after = 2
    client.post("/v1/chat/completions", json=CHAT | {"stream": True, "n": 1, "max_tokens": 20})
    kept.server.chat.lose_after = None
    (row,) = kept.wait(1)
    assert row["outcome"] == "failed" and row["error_code"], row


def test_probes_lists_and_the_console_itself_are_not_kept(kept: Kept, client: httpx.Client) -> None:
    for path in ("/health", "/metrics", "/v1/models", f"{API}/requests", f"{API}/requests/nothing", "/docs", "/x"):
        client.get(path)
    client.post("/v1/embeddings", json={"model": "vec", "input": "x", "user": "ada"})
    (row,) = kept.wait(1)
    assert (row["endpoint"], row["user"]) == ("/v1/embeddings", "ada")


def test_nobody_sees_anothers_requests(kept: Kept) -> None:
    acme = kept.server.add_tenant("acme-kept")
    program = kept.server.add_tenant("program-kept", role=Role.SERVICE)
    with acme, program:
        theirs = acme.post("/v1/chat/completions", json=CHAT | {"prompt_cache_key": "shared"}).json()["id"][9:]
        mine = program.post("/v1/chat/completions", json=CHAT | {"prompt_cache_key": "shared"}).json()["id"][9:]
        assert [row["organization"]["name"] for row in kept.wait(2)] == ["program-kept", "acme-kept"]
        principals = kept.server.authenticator.principals
        acme_id, acme_project = principals["acme-kept"].organization_id, principals["acme-kept"].project_id
        assert [row["id"] for row in kept.list(acme)] == [theirs]
        assert [row["id"] for row in kept.list(program)] == [mine]
        assert [row["id"] for row in kept.list(organization=acme_id)] == [theirs]
        assert [row["id"] for row in kept.list(project=acme_project)] == [theirs]
        assert kept.list(acme, project=principals["program-kept"].project_id) == []
        for path in ("", "/steps", "/contents"):
            assert program.get(f"{API}/requests/{theirs}{path}").status_code == 404
        session = program.get(f"{API}/sessions/shared").json()
        assert [row["id"] for row in session["data"]] == [mine]
        assert kept.detail(mine, program)["session"] == [mine]
        for query in ({"organization": acme_id}, {"project": acme_project}):
            for route in ("requests", "requests.csv"):
                assert program.get(f"{API}/{route}", params=query).status_code == 403
        assert theirs not in program.get(f"{API}/requests.csv").text


def test_steps_are_asked_of_the_engine_and_name_nobody_else(kept: Kept) -> None:
    with kept.server.add_tenant("acme-steps") as acme:
        record = acme.post("/v1/chat/completions", json=CHAT).json()["id"][9:]
        kept.wait(1)
        mine = kept.server.authenticator.principals["acme-steps"].organization_id
        kept.server.chat.steps_of[record] = steps_of(3, mine, "org-globex")
        found = kept.detail(record, acme)
        assert found["with_steps"] and "org-globex" not in str(found)
        turns = kept.detail(record, acme, "/steps")["turns"][record]["turns"]
        assert [turn["tenant"] for turn in turns] == ["acme-steps", ANOTHER_TENANT]
        assert (turns[0]["request_id"], turns[1]["request_id"]) == ("t0", "")
        told = kept.detail(record, more="/steps")["turns"][record]["turns"]
        assert [turn["tenant"] for turn in told] == ["acme-steps", "org-globex"], "deleted: its id"


def test_requests_of_a_session_are_in_order_and_one_has_a_typical_one_beside_it(
    kept: Kept, client: httpx.Client
) -> None:
    names = [
        client.post("/v1/chat/completions", json=CHAT | {"prompt_cache_key": "a/b"}).json()["id"][9:] for _ in range(3)
    ]
    kept.wait(3)
    assert [row["id"] for row in client.get(f"{API}/sessions/a%2Fb").json()["data"]] == names
    found = kept.detail(names[1])
    assert found["session"] == names
    assert found["typical"]["requests"] >= 2
    assert {each["name"] for each in found["explanation"]["beside"]} >= {"queue"} & set(found["typical"]["parts"])


def add_rows(kept: Kept, count: int, **columns: Any) -> None:
    """Rows of the default project, of an hour ago."""
    begin = int((kept.server.gateway.store.now() - 3600) * 1e6)
    own = ({"id": f"{columns['session']}-{n}", "started_us": begin + n} for n in range(count))
    rows = [kept_row(0, ANYBODY.owner, **columns, **each) for each in own]
    kept.server.do(add_kept(kept.server.gateway.store, rows, {row["id"]: b"broken" for row in rows}))


def test_pages_and_exports_are_bounded_and_cells_are_no_formulas(
    kept: Kept, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_rows(kept, 7, session="paged", end_user='=1+"x",2')
    seen, query = list[str](), {"session": "paged", "limit": 3}
    while True:
        page = client.get(f"{API}/requests", params=query).json()
        seen += [row["id"] for row in page["data"]]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert seen == [f"paged-{n}" for n in range(6, -1, -1)]
    monkeypatch.setattr(routes, "_PAGE", 2)
    monkeypatch.setattr(routes, "MAX_EXPORTED", 5)
    answer = client.get(f"{API}/requests.csv", params={"session": "paged"})
    assert (
        answer.headers["content-type"].startswith("text/csv") and "attachment" in answer.headers["content-disposition"]
    )
    rows = list(csv.DictReader(StringIO(answer.text)))
    assert [row["id"] for row in rows] == seen[:5]
    assert {row["user"] for row in rows} == {'\'=1+"x",2'}
    assert rows[0]["started_at"][:2] == "20"


def test_the_requests_of_a_batch_are_listed(kept: Kept, client: httpx.Client) -> None:
    add_rows(kept, 2, session="of-batch", batch_id="batch_1")
    add_rows(kept, 1, session="of-another", batch_id="batch_2")
    page = client.get(f"{API}/requests", params={"batch": "batch_1"}).json()
    assert ({row["session"] for row in page["data"]}, page["matching"]) == ({"of-batch"}, 2)


def test_one_that_another_version_kept_says_so(kept: Kept, client: httpx.Client) -> None:
    add_rows(kept, 1, session="unreadable")
    answer = client.get(f"{API}/requests/unreadable-0")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "kept_request_unreadable")


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 201},
        {"limit": 0},
        {"after": "x"},
        {"after": "1.2.3"},
        {"status": "9xx"},
        {"status": "ok"},
        {"reason": "other"},
        {"order": "random"},
        {"since": "yesterday"},
        {"since": -1},
        {"since": "nan"},
        {"min_total": "inf"},
        {"session": "x" * 300},
        {"id": "a\0"},
        {"before": "1.2"},
    ],
)
def test_what_cannot_be_meant_is_refused(client: httpx.Client, query: dict[str, Any]) -> None:
    answer = client.get(f"{API}/requests", params=query)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]


def test_a_place_far_beyond_the_list_is_its_end(client: httpx.Client) -> None:
    assert client.get(f"{API}/requests", params={"after": "0.0"}).json()["data"] == []
    assert client.get(f"{API}/requests", params={"after": f"{'9' * 19}.{'9' * 19}"}).status_code == 200


def test_requests_of_one_client_id_have_their_own_prompts_and_each_reading_is_noted(kept: Kept) -> None:
    with kept.server.add_tenant("same-id", log_prompts=True) as client:
        body = {"model": "tiny", "max_tokens": 2}
        names = [
            client.post("/v1/completions", json=body | {"prompt": said}, headers={"x-request-id": "same"}).json()["id"]
            for said in ("open", "other")
        ]
        names.append(client.post("/v1/chat/completions", json=CHAT | {"store": True}).json()["id"])
        kept.wait(3)
        kept.server.do(kept.server.gateway.moderation.prompts.flush())
        names = [name.partition("-")[2] for name in names]
        seen = [str(kept.detail(name, client, "/contents")["prompt"]) for name in names]
        assert all(said in prompt for said, prompt in zip(("open", "other", "hi"), seen, strict=True)), seen
        log = client.get("/v1/organization/audit_logs", params={"event_types[]": "prompts.read"}).json()["data"]
        assert [entry["prompts.read"]["data"]["request"] for entry in log] == names[::-1]


def test_prompts_and_answers_are_shown_where_they_are_kept_and_reading_is_noted(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled = kept.server.add_tenant("sampled", log_prompts=True)
    told_of: list[Any] = []
    monkeypatch.setattr(request_contents, "actor_of", lambda who: told_of.append(who) or actor_of(who))
    program = kept.server.add_tenant("sampled-program", role=Role.SERVICE, log_prompts=True)
    with sampled, program:
        plain = sampled.post("/v1/completions", json={"model": "tiny", "prompt": "open", "max_tokens": 2})
        chat = sampled.post("/v1/chat/completions", json=CHAT)
        stored = sampled.post("/v1/chat/completions", json=CHAT | {"store": True})
        theirs = program.post("/v1/completions", json={"model": "tiny", "prompt": "open", "max_tokens": 2})
        kept.wait(4)
        kept.server.do(kept.server.gateway.moderation.prompts.flush())
        name = stored.json()["id"][9:]
        contents = kept.detail(name, sampled, "/contents")
        assert contents["source"] == "stored" and contents["prompt"][0]["content"] == "hi"
        assert contents["answer"] == stored.json()["choices"]
        name = plain.json()["id"].partition("-")[2]
        contents = kept.detail(name, sampled, "/contents")
        assert contents.pop("is_whole") is True
        assert contents == {"prompt": ["open"], "answer": plain.json()["choices"][0]["text"], "source": "sample"}
        log = sampled.get("/v1/organization/audit_logs", params={"event_types[]": "prompts.read"}).json()["data"]
        assert log[0]["prompts.read"]["data"] == {"prompts": 1, "request": name}
        assert told_of == [kept.server.authenticator.principals["sampled"]] * 2, "the log names the one who reads"
        contents = kept.detail(chat.json()["id"][9:], sampled, "/contents")
        assert contents["prompt"] == CHAT["messages"]
        assert contents["answer"] == chat.json()["choices"][0]["message"]["content"]
        assert kept.client.get(f"{API}/requests/{name}/contents").status_code == 403, "another organisation's"
        theirs_id = theirs.json()["id"].partition("-")[2]
        assert program.get(f"{API}/requests/{theirs_id}/contents").status_code == 403, "a program's key"
