"""Feedback on answers: found by any id that the client has, one for each author, of the own project only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from kvarn.store.owner import Role

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


def ask(client: httpx.Client, **headers: str) -> httpx.Response:
    answer = client.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def give(client: httpx.Client, request_id: str, **fields: Any) -> httpx.Response:
    return client.post("/v1/feedback", json={"request_id": request_id, **fields})


def counted(client: httpx.Client, rating: str) -> float:
    line = f'kvarn_feedback_total{{model="tiny",rating="{rating}"}}'
    found = [each for each in client.get("/metrics").text.splitlines() if each.startswith(line)]
    return float(found[0].split()[-1]) if found else 0.0


def test_an_answer_is_found_by_its_id_by_its_header_and_by_the_clients_own_id(kept) -> None:
    with kept.add_tenant("red") as red:
        plain, named = ask(red), ask(red, **{"x-request-id": "ticket-7"})
        for request_id in (plain.json()["id"], plain.headers["x-request-id"]):
            given = give(red, request_id, rating="up", labels=["short"], metadata={"page": "help"})
            assert given.status_code == 200, given.text
            assert given.json()["request_id"] == plain.headers["x-request-id"]
        for request_id in ("ticket-7", named.json()["id"]):
            given = give(red, request_id, rating="down", comment="wrong\0 year").json()
            assert given["request_id"] == "ticket-7" and given["comment"] == "wrong\ufffd year"
        assert given["model"] == "tiny" and given["version"]
        listed = red.get("/v1/organization/feedback").json()["data"]
        assert [(each["rating"], each["labels"]) for each in listed] == [("down", []), ("up", ["short"])]
        assert listed[1]["metadata"] == {"page": "help"}
        down = red.get("/v1/organization/feedback", params={"rating": "down", "limit": 1}).json()
        assert [each["id"] for each in down["data"]] == [listed[0]["id"]]
        assert red.delete(f"/v1/feedback/{listed[0]['id']}").json()["deleted"] is True
        assert len(red.get("/v1/organization/feedback").json()["data"]) == 1


@pytest.mark.parametrize("own", ["req-123", "REQ-7", f"req-{'a1' * 16}"])
def test_a_clients_own_id_may_look_like_the_servers(kept, own: str) -> None:
    with kept.add_tenant("red") as red:
        ask(red, **{"x-request-id": own})
        given = give(red, own, rating="up")
        assert given.status_code == 200 and given.json()["request_id"] == own, given.text


def test_only_who_gave_an_opinion_or_an_administrator_changes_it(kept) -> None:
    with kept.add_tenant("ada", role=Role.MEMBER, user_id="user-ada") as ada:
        whose = kept.authenticator.principals["ada"]
        others = {
            "bob": {"user_id": "user-bob"},
            "program": {"user_id": None, "key_id": "key-1", "role": Role.SERVICE},
            "program-2": {"user_id": None, "key_id": "key-2", "role": Role.SERVICE},
            "admin": {"user_id": "user-admin", "role": Role.ADMIN},
        }
        kept.authenticator.principals |= {name: replace(whose, **changes) for name, changes in others.items()}
        answer = ask(ada).json()["id"]
        mine = give(ada, answer, rating="up").json()
        with kept.client("bob") as bob, kept.client("admin") as admin:
            forged = give(bob, answer, rating="down", user="user-ada")
            assert forged.status_code == 409, forged.text
            assert bob.delete(f"/v1/feedback/{mine['id']}").status_code == 404
            (listed,) = admin.get("/v1/organization/feedback").json()["data"]
            assert (listed["rating"], listed["user"]) == ("up", "user-ada")
            assert give(bob, answer, rating="down").json()["id"] != mine["id"]
            assert admin.delete(f"/v1/feedback/{mine['id']}").json()["deleted"] is True
        with kept.client("program") as program, kept.client("program-2") as renewed:
            theirs = give(program, answer, rating="up", user="u-17").json()
            assert give(renewed, answer, rating="down", user="u-17").json()["id"] == theirs["id"]
            assert renewed.delete(f"/v1/feedback/{theirs['id']}").json()["deleted"] is True


def test_each_author_has_one_opinion_of_an_answer_and_may_change_it(kept) -> None:
    with kept.add_tenant("red") as red:
        answer = ask(red).json()["id"]
        first = give(red, answer, rating="up", user="anna").json()
        changed = give(red, answer, rating="down", score=0.25, user="anna").json()
        other = give(red, answer, score=1.0, user="bo").json()
        assert changed["id"] == first["id"] != other["id"]
        assert changed["rating"] == "down" and changed["score"] == 0.25
        assert len(red.get("/v1/organization/feedback").json()["data"]) == 2
        assert [counted(red, rating) for rating in ("up", "down", "none")] == [1, 1, 1]


def test_nobody_elses_answer_takes_feedback_and_nobody_else_reads_it(server) -> None:
    with server.add_tenant("feedback red", role=Role.MEMBER) as red, server.add_tenant("feedback blue") as blue:
        answer = ask(red).json()["id"]
        refused = give(blue, answer, rating="up")
        assert refused.status_code == 404 and refused.json()["error"]["code"] == "request_not_found"
        mine = give(red, answer, rating="up").json()
        assert blue.delete(f"/v1/feedback/{mine['id']}").status_code == 404
        assert blue.get("/v1/organization/feedback").json()["data"] == []
        assert red.get("/v1/organization/feedback").status_code == 403


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "rating"),
        ({"rating": "good"}, "rating"),
        ({"score": 1.5}, "score"),
        ({"comment": "ö" * 2049}, "comment"),
        ({"labels": ["x"] * 17}, "labels"),
        ({"labels": [""]}, "labels[0]"),
        ({"rating": "up", "user": "a\0b"}, "user"),
    ],
)
def test_what_says_nothing_or_too_much_is_refused(client: httpx.Client, fields: dict[str, Any], param: str) -> None:
    refused = give(client, "chatcmpl-x", **fields)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param, refused.text
