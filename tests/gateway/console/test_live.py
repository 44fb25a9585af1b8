"""The live view over HTTP: what a viewer is sent, and that an engine is asked only while somebody looks."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from gateway_fixtures import make_server, running, wait_for
from kvarn.store.owner import Role
from kvarn.wire.kv_map import CACHED, NO_OWNER, KVMap, KVPath, PathBlock
from kvarn.wire.step_records import LiveSteps, QueuedTurns, RunningTurn, StepRecord, StepRow, StepTurn

LIVE = "/console/api/live"


def turn(request_id: str, tenant: str, prompt: int = 30) -> StepTurn:
    return StepTurn(
        request_id=request_id,
        tenant=tenant,
        adapter="style",
        priority=0,
        prompt_tokens=prompt,
        cached_tokens=16,
        accepted_us=1_000_000,
    )


def step(number: int, rows: list[StepRow], us: int = 20_000) -> StepRecord:
    prefill = sum(row.computed_tokens for row in rows if row.computed_tokens > 1)
    return StepRecord(number, 2_000_000 + 20_000 * number, us, 9_000, prefill, 100, 2, 64, 0, 50, rows)


def live(*tenants: str) -> LiveSteps:
    """Two steps of two turns, of these tenants: one decodes, the other's prompt is computed and then it decodes."""
    one, other = tenants
    return LiveSteps(
        now_us=3_000_000,
        turns=[turn("a", one), turn("b", other)],
        steps=[step(1, [StepRow(0, 1, 1), StepRow(1, 30, 1)]), step(2, [StepRow(0, 1, 1), StepRow(1, 1, 1)])],
        running=[RunningTurn(0, 1, 40, 41, 11, 3), RunningTurn(1, 1, 31, 32, 2, 2)],
        queue=[QueuedTurns(tenant, 0, "blocks", 2, 500, 1.5) for tenant in ("org-x", "org-y")],
        times=None,
        kv_blocks=6,
        free_blocks=4,
        cached_blocks=1,
    )


def blocks(*tenants: str) -> KVMap:
    return KVMap(
        states=bytes([2, 2 | CACHED, 1 | CACHED, 0, 0, 0]),
        owners=bytes([0, 1, 0, NO_OWNER, NO_OWNER, NO_OWNER]),
        tenants=list(tenants),
        tiers=[],
    )


@contextmanager
def watching(client, **query: str) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
    """The events of a stream, with their names."""
    with client.stream("GET", LIVE, params=query) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()

        def events() -> Iterator[tuple[str, dict[str, Any]]]:
            name = ""
            for line in lines:
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield name, json.loads(line.removeprefix("data: "))

        yield events()


def whole(events: Iterator[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """What the first events come to, until the engine has answered."""
    name, told = next(events)
    assert name == "state"
    while told["problem"]:
        name, update = next(events)
        assert name == "update"
        told |= update
    return told


@pytest.fixture
def replica(server):
    (name,) = server.served["tiny"].replicas
    wait_for(lambda: len(server.app.state.watches) == 0, "the watches of the tests before to end")
    server.chat.asked.clear()
    server.chat.live_steps, server.chat.blocks = live("org-default", "org-x"), blocks("org-default", "org-x")
    return name


def test_the_whole_state_comes_first_and_then_what_has_changed(server, client, replica) -> None:
    began_s = time.time()
    with watching(client, model="tiny") as events:
        told = whole(events)
        assert (told["model"], told["replica"]) == ("tiny", replica)
        first, second = told["steps"]
        assert (first["number"], first["us"], first["floor_us"], first["free_blocks"]) == (1, 20_000, 9_000, 50)
        assert (first["singles"], first["rows"]) == ([0], [[1, 30, 1]])
        assert (second["singles"], second["rows"]) == ([0, 1], [])
        assert second["at_s"] - first["at_s"] == pytest.approx(0.02, abs=1e-5)
        assert began_s - 1e-5 <= second["at_s"] + 0.96 <= told["at_s"] + 1e-5
        assert [each["request_id"] for each in told["turns"]] == ["a", "b"]
        assert [each["output_tokens"] for each in told["running"]] == [11, 2]
        assert told["totals"] == {"kv_blocks": 6, "free_blocks": 4, "cached_blocks": 1}
        assert [(each["name"], each["state"]) for each in told["replicas"]] == [(replica, "ready")]
        models = {each["name"]: each for each in client.get("/console/api/models").json()["models"]}
        assert told["replicas"][0]["fingerprint"] == models["tiny"]["fingerprint"]
        (run,) = told["blocks"]["runs"]
        assert b64decode(run["states"]) == server.chat.blocks.states

        before = server.chat.live_steps
        longer = [replace(before.steps[1], us=25_000), step(3, [StepRow(0, 1, 1), StepRow(1, 1, 1)])]
        server.chat.live_steps = replace(before, steps=longer)
        name, update = next((name, told) for name, told in events if "steps" in told)
        assert name == "update"
        assert [(each["number"], each["us"]) for each in update["steps"]] == [(2, 25_000), (3, 20_000)]
        assert update["steps"][0]["singles"] == [0, 1]
        assert "singles" not in update["steps"][1]
        assert not {"turns", "running", "totals", "replicas", "model"} & update.keys()
    assert server.chat.asked[:2] == [0, 1], "the latest step is asked for again"


def test_other_tenants_are_seen_at_work_but_not_named(server, replica) -> None:
    with server.add_tenant("acme", role=Role.ADMIN) as acme:
        own = server.authenticator.principals["acme"].organization_id
        server.chat.live_steps, server.chat.blocks = live(own, "org-x"), blocks("org-x", own)
        with watching(acme) as events:
            told = whole(events)
    seen = {each["tenant"]: (each["request_id"], each["adapter"]) for each in told["turns"]}
    assert seen == {"acme": ("a", "style"), "another tenant": (None, None)}
    assert [(each["tenant"], each["sequences"], each["tokens"]) for each in told["queue"]] == [
        ("another tenant", 4, 1000)
    ]
    names = told["blocks"]["tenants"]
    assert set(names) == {"acme", "another tenant"}
    assert "org-x" not in json.dumps(told)


def test_a_member_sees_no_requests_of_others(server, replica) -> None:
    with server.add_tenant("globex", role=Role.MEMBER) as globex, watching(globex) as events:
        told = whole(events)
    assert {each["request_id"] for each in told["turns"]} == {None}


def test_an_engine_is_asked_only_while_somebody_looks(server, client, replica) -> None:
    watches = server.app.state.watches
    with watching(client) as first, watching(client) as second:
        whole(first)
        whole(second)
        assert len(watches) == 1
    wait_for(lambda: len(watches) == 0, "the watch to end")


def test_another_engine_process_is_told_from_the_beginning(server, client, replica) -> None:
    with watching(client) as events:
        whole(events)
        server.chat.starts += 1
        again = next(told for name, told in events if name == "state")
    assert [each["number"] for each in again["steps"]] == [1, 2]
    assert [each["request_id"] for each in again["turns"]] == ["a", "b"]


def test_what_has_no_steps_says_so(server, client) -> None:
    with watching(client, model="vec") as events:
        told = next(told for _, told in events if "not answered" not in told.get("problem", "not answered"))
    assert "generates no text" in told["problem"]


@pytest.mark.parametrize("query", [{"model": "no"}, {"replica": "no"}, {"model": "tiny", "replica": "no"}])
def test_an_unknown_model_or_replica_is_not_found(client, query: dict[str, str]) -> None:
    answer = client.get(LIVE, params=query)
    assert (answer.status_code, "no" in answer.json()["error"]["message"]) == (404, True)


def test_a_block_is_told_with_its_path(server, client, replica) -> None:
    path = [PathBlock(9, 1, 0), PathBlock(4, 3, 2)]
    server.chat.paths[9] = KVPath(
        block=9, tenant="org-x", adapter="style", is_adapter=False, depth=2, path=path, request_ids=["a"]
    )
    told = client.get(f"{LIVE}/block", params={"block": 9}).json()
    assert told == {
        "block": 9,
        "tenant": "org-x",
        "adapter": "style",
        "is_adapter": False,
        "depth": 2,
        "tokens": 32,
        "path": [[9, 1, 0], [4, 3, 2]],
        "request_ids": ["a"],
    }
    with server.add_tenant("initech", role=Role.ADMIN) as other:
        hidden = other.get(f"{LIVE}/block", params={"block": 9}).json()
    assert (hidden["tenant"], hidden["adapter"], hidden["request_ids"]) == ("another tenant", None, None)
    assert client.get(f"{LIVE}/block", params={"block": 64}).status_code == 404
    assert client.get(f"{LIVE}/block", params={"block": 63}).status_code == 503
    assert client.get(f"{LIVE}/block", params={"block": -1}).status_code == 400


def test_a_stream_ends_when_the_server_stops(checkpoint) -> None:
    server = make_server(checkpoint, drain_timeout_s=600)
    with ExitStack() as open_still:
        with running(server):
            events = open_still.enter_context(watching(open_still.enter_context(server.client())))
            next(events)
        assert all(name == "update" for name, _ in events), "it ends, and without an error"
