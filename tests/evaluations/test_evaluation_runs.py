"""Evaluation sets through HTTP: versions and their history, runs by the model's engines, results, comparisons."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from fake_replica import answer_text
from kvarn.config.platform import BatchesConfig
from kvarn.evaluations import answering, worker
from kvarn.store.errors import StoreAwayError
from kvarn.store.owner import Scopes

ITEMS = [
    {"id": "capital", "messages": [{"role": "user", "content": "capital of France?"}], "expected": "Paris"},
    {"prompt": "2 + 2 =", "checks": [{"type": "regex", "pattern": r"\b4\b"}]},
    {
        "messages": [{"role": "user", "content": "as JSON"}],
        "checks": [
            {"type": "json_fields", "fields": {"a": 1}},
            {"type": "json_schema", "schema": {"type": "object", "required": ["a"]}},
        ],
    },
    {
        "messages": [{"role": "user", "content": "be kind"}],
        "checks": [{"type": "judge", "rubric": "Is it kind?"}],
    },
]
RIGHT = {"France": "Paris", "2 + 2": " 4.", "as JSON": '{"a": 1}', "be kind": "Of course, my friend."}
OFTEN = {"batches": BatchesConfig(poll_s=0.05)}
Finish = Callable[[httpx.Client, dict[str, Any]], dict[str, Any]]


def answers(server: Any, score: int = 5, **changes: str) -> None:
    """Have the model answer rightly, but for `changes` by words of the question, and grade with this score."""
    said = RIGHT | {name.replace("_", " "): text for name, text in changes.items()}

    def answer(request: Any, index: int) -> list[int]:
        asked = bytes(token for token in request.prompt_token_ids if token < 256).decode()
        if "RUBRIC" in asked:
            return answer_text(f'{{"reason": "so it is", "score": {score}}}')
        return answer_text(next((text for words, text in said.items() if words in asked), "?"))

    server.chat.answer = answer


def post(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/v1/evaluations{path}", json=body)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


@pytest.fixture
def finish(wait_for: Any) -> Finish:
    """Wait for the end of a run."""

    def wait(client: httpx.Client, run: dict[str, Any]) -> dict[str, Any]:
        def over() -> bool:
            run.update(client.get(f"/v1/evaluations/{run['set_id']}/runs/{run['id']}").json())
            return run["status"] not in ("queued", "in_progress")

        wait_for(over, "the run to end", seconds=60)
        return run

    return wait


@pytest.fixture
def evaluator(serve_stored: Any) -> Iterator[Any]:
    """A gateway of its own, which looks for runs often; its model has a context in which a judge can read."""
    with serve_stored(lambda server: server.widen(8192), config=OFTEN) as server:
        yield server


def gauge(client: httpx.Client, name: str, set_name: str) -> float | None:
    found = [
        line
        for line in client.get("/metrics").text.splitlines()
        if line.startswith(f"{name}{{") and f'set="{set_name}"' in line
    ]
    return float(found[0].split()[-1]) if found else None


def test_a_set_is_run_graded_compared_and_shown(evaluator: Any, finish: Finish, wait_for: Any) -> None:
    with evaluator.client() as client:
        made = post(client, "", name="smoke", items=ITEMS, note="first")
        assert made["version"] == 1 and made["num_items"] == 4
        answers(evaluator)
        run = finish(client, post(client, "/smoke/runs", model="tiny", judge_model="tiny"))
        found = client.get(f"/v1/evaluations/smoke/runs/{run['id']}/results").json()["data"]
        assert [each["error"] for each in found] == [None] * 4 and run["status"] == "completed"
        assert (run["score"], run["passed"], run["answered"], run["errors"]) == (1.0, 4, 4, 0)
        assert run["answered_by"] == "tiny" and run["version"]
        results = client.get(f"/v1/evaluations/smoke/runs/{run['id']}/results").json()["data"]
        assert [each["item"] for each in results] == [0, 1, 2, 3]
        assert results[0]["output"] == "Paris" and results[0]["output_tokens"] > 0
        assert results[3]["grades"] == [{"check": "judge", "score": 1.0, "passed": True, "reason": "so it is"}]
        assert {submit.priority for submit in evaluator.chat.submitted} == {10}

        answers(evaluator, score=3, France="Lyon", as_JSON='{"a": 2}')
        worse = finish(client, post(client, "/smoke/runs", model="tiny", judge_model="tiny"))
        assert worse["score"] == pytest.approx((0 + 1 + 0.5 + 0.5) / 4) and worse["passed"] == 1
        compared = client.get(f"/v1/evaluations/smoke/runs/{worse['id']}/compare", params={"against": run["id"]}).json()
        assert compared["statistics"]["difference"] == pytest.approx(-0.5)
        assert (compared["statistics"]["better"], compared["statistics"]["worse"]) == (0, 3)
        assert [each["item"] for each in compared["changed"]] == [0, 2, 3]
        wait_for(lambda: gauge(client, "kvarn_quality_score", "smoke") == 0.5, "the score to be shown")
        assert gauge(client, "kvarn_quality_baseline_score", "smoke") == 1.0
        listed = client.get("/v1/evaluations/smoke/runs", params={"limit": 1}).json()
        assert [each["id"] for each in listed["data"]] == [worse["id"]] and listed["has_more"]
        assert client.delete("/v1/evaluations/smoke").json()["deleted"]
        assert client.get(f"/v1/evaluations/smoke/runs/{run['id']}").status_code == 404


def test_every_change_of_a_set_is_a_version_and_runs_may_ask_for_an_older_one(evaluator: Any, finish: Finish) -> None:
    with evaluator.client() as client:
        made = post(client, "", name="grows", items=ITEMS[:1])
        assert post(client, "/grows/versions", items=ITEMS[1:2], append=True, note="sums")["num_items"] == 2
        assert post(client, f"/{made['id']}/versions", items=ITEMS[1:2])["version"] == 3
        history = client.get("/v1/evaluations/grows/versions", params={"limit": 2}).json()
        assert [each["version"] for each in history["data"]] == [3, 2] and history["has_more"]
        assert history["data"][1]["note"] == "sums" and "items" not in history["data"][0]
        second = client.get("/v1/evaluations/grows/versions/2").json()
        assert [each["id"] for each in second["items"]] == ["capital", None]
        answers(evaluator)
        first, last = [
            finish(client, post(client, "/grows/runs", model="tiny", set_version=version)) for version in (1, 3)
        ]
        assert (first["total"], last["total"]) == (1, 1)
        refused = client.get(f"/v1/evaluations/grows/runs/{first['id']}/compare", params={"against": last["id"]}).json()
        assert refused["error"]["param"] == "against" and "versions 1 and 3" in refused["error"]["message"]
        pinned = post(client, "/grows", baseline_run_id=last["id"], description="sums")
        assert pinned["baseline_run_id"] == last["id"] and pinned["description"] == "sums"
        assert client.post("/v1/evaluations/grows", json={"baseline_run_id": "evalrun_x"}).status_code == 404


def test_items_that_cannot_be_answered_are_told_and_fail_a_run(evaluator: Any, finish: Finish) -> None:
    with evaluator.client() as client:
        wrong = {"messages": [{"role": "nobody", "content": "x"}], "expected": "y"}
        post(client, "", name="broken", items=[ITEMS[0], wrong])
        answers(evaluator)
        run = finish(client, post(client, "/broken/runs", model="tiny"))
        assert run["status"] == "failed" and run["score"] is None
        assert (run["answered"], run["passed"], run["errors"]) == (2, 1, 1)
        (result,) = client.get(f"/v1/evaluations/broken/runs/{run['id']}/results", params={"after": 0}).json()["data"]
        assert "role" in result["error"] and result["score"] == 0.0


def test_a_run_goes_on_where_the_gateway_before_it_stopped(serve_stored: Any, finish: Finish, wait_for: Any) -> None:
    with serve_stored(config=OFTEN, drain_timeout_s=0.1) as first, first.client() as client:
        post(client, "", name="long", items=ITEMS[:1] * 12)
        asked: list[Any] = []

        def eight(request: Any, index: int) -> list[int]:
            asked.append(request)
            if len(asked) == 8:
                first.chat.hold = asyncio.Event()
            return answer_text("Paris")

        first.chat.answer = eight
        run = post(client, "/long/runs", model="tiny")
        path = f"/v1/evaluations/long/runs/{run['id']}"
        wait_for(lambda: client.get(path).json()["answered"] == 8, "the first results", seconds=60)
    with serve_stored(answers, config=OFTEN) as second, second.client() as client:
        done = finish(client, run)
        assert (done["status"], done["answered"], done["score"]) == ("completed", 12, 1.0)
        assert len(second.chat.submitted) == 4


@pytest.mark.parametrize(("error", "errors"), [(RuntimeError("broken"), 1), (StoreAwayError("it is away"), 0)])
def test_an_unforeseen_error_is_its_items_and_an_absent_database_is_nobodys(
    evaluator: Any, finish: Finish, monkeypatch: pytest.MonkeyPatch, error: Exception, errors: int
) -> None:
    faults, grade = [error], answering.grade

    async def fail_once(item: Any, *rest: Any) -> Any:
        if item.id and faults:
            raise faults.pop()
        return await grade(item, *rest)

    monkeypatch.setattr(answering, "grade", fail_once)
    with evaluator.client() as client:
        post(client, "", name="odd", items=[ITEMS[0], *[ITEMS[1]] * 9])
        answers(evaluator)
        run = finish(client, post(client, "/odd/runs", model="tiny"))
        assert (run["status"], run["answered"], run["errors"], run["passed"]) == ("completed", 10, errors, 10 - errors)
        results = client.get(f"/v1/evaluations/odd/runs/{run['id']}/results").json()["data"]
        assert ("RuntimeError" in (results[0]["error"] or "")) == bool(errors)


def test_a_run_that_cannot_end_is_given_up_after_its_window(
    evaluator: Any, finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_WINDOW_S", 0)
    with evaluator.client() as client:
        post(client, "", name="late", items=ITEMS[:1])
        run = finish(client, post(client, "/late/runs", model="tiny"))
        assert run["status"] == "failed" and "after it was asked for" in run["problem"]


def test_a_schema_that_is_none_is_told_with_the_grade(evaluator: Any, finish: Finish) -> None:
    checks = [{"type": "json_schema", "schema": {"type": "banana"}}]
    with evaluator.client() as client:
        post(client, "", name="odd", items=[{"prompt": "as JSON", "checks": checks}])
        answers(evaluator)
        run = finish(client, post(client, "/odd/runs", model="tiny"))
        assert run["status"] == "completed" and run["score"] == 0.0
        (result,) = client.get(f"/v1/evaluations/odd/runs/{run['id']}/results").json()["data"]
        assert "not a valid JSON schema" in result["grades"][0]["reason"]


def test_a_run_is_cancelled_and_its_key_must_hold(evaluator: Any, finish: Finish) -> None:
    with evaluator.add_tenant("narrow", scopes=Scopes(models=("vec",))) as narrow, evaluator.client() as client:
        post(narrow, "", name="mine", items=ITEMS[:1])
        refused = narrow.post("/v1/evaluations/mine/runs", json={"model": "tiny"})
        assert refused.status_code == 403
        assert client.get("/v1/evaluations/mine").status_code == 404
        assert client.get("/v1/evaluations").json()["data"] == []
        post(client, "", name="mine", items=ITEMS[:1])
        evaluator.chat.lose_after = 0
        run = post(client, "/mine/runs", model="tiny")
        assert post(client, f"/mine/runs/{run['id']}/cancel")["status"] == "cancelled"
        assert finish(client, run)["status"] == "cancelled"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "evalset_1"}, "name"),
        ({"items": []}, "items"),
        ({"items": [{"expected": "x"}]}, "messages"),
        ({"items": [{"prompt": "x"}]}, "expected"),
        ({"items": [{"prompt": "x", "checks": [{"type": "regex", "pattern": "(?=a)"}]}]}, "pattern"),
        ({"items": [{"prompt": "x", "checks": [{"type": "exact"}]}]}, "expected"),
        ({"items": [{"prompt": "x", "checks": [{"type": "vibes"}]}]}, "items[0].checks[0].type"),
    ],
)
def test_a_set_that_cannot_be_run_is_refused(client: httpx.Client, body: dict[str, Any], param: str) -> None:
    refused = client.post("/v1/evaluations", json={"name": "refused", "items": ITEMS[:1]} | body)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param, refused.text


def test_a_run_needs_models_that_there_are(client: httpx.Client) -> None:
    post(client, "", name="needs", items=ITEMS)
    unknown = client.post("/v1/evaluations/needs/runs", json={"model": "nobody", "judge_model": "tiny"})
    assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "model_not_found"
    missing = client.post("/v1/evaluations/needs/runs", json={"model": "tiny"})
    assert missing.status_code == 400 and missing.json()["error"]["param"] == "judge_model"
    again = client.post("/v1/evaluations", json={"name": "needs", "items": ITEMS[:1]})
    assert again.status_code == 409
    client.delete("/v1/evaluations/needs")
