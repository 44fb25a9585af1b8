"""The console's view of quality, and the review of sampled prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fake_replica import answer_text
from kvarn.config.platform import SafetyConfig
from kvarn.gateway.console.api.quality import compare_versions
from kvarn.store.owner import Role
from kvarn.store.repositories.feedback import FeedbackSum


@pytest.fixture
def kept(serve_stored: Any, tmp_path: Any) -> Iterator[Any]:
    """A gateway that keeps every prompt of projects that allow it."""
    config = {"safety": SafetyConfig(log_prompts_sample=1.0), "data_dir": str(tmp_path / "data")}
    with serve_stored(config=config) as server:
        server.chat.answer = lambda request, index: answer_text("ask anna@example.org")
        yield server


def ask(client: httpx.Client, text: str) -> httpx.Response:
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}]}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    return answer


def test_a_sampled_prompt_is_opened_judged_and_made_an_item(kept: Any) -> None:
    with kept.add_tenant("red", log_prompts=True) as red, kept.add_tenant("blue") as blue:
        answer = ask(red, "call +46 70-123 45 67")
        kept.do(kept.gateway.moderation.prompts.flush())
        (row,) = red.get("/console/api/review", params={"state": "unreviewed"}).json()["data"]
        assert row["request_id"] == answer.headers["x-request-id"] and row["model"] == "tiny"
        path = f"/console/api/review/{row['id']}"
        opened = red.get(path).json()
        assert opened["input"]["messages"][0]["content"] == "call [phone]"
        assert opened["answer"] == "ask [email]" and opened["sample"]["has_answer"]
        events = red.get("/v1/organization/audit_logs").json()["data"]
        assert [each["type"] for each in events].count("prompts.read") == 1
        assert red.get("/console/api/quality").json()["unreviewed"] == 1
        with kept.client() as platform:
            assert platform.get("/console/api/session").json()["is_platform_admin"]
            assert platform.get("/console/api/review").json()["data"] == []
            assert platform.get("/console/api/quality").json()["unreviewed"] == 0
            assert platform.get(path).status_code == platform.post(path, json={"state": "good"}).status_code == 404
            assert platform.post(f"{path}/item", json={"set": "calls", "expected": "yes"}).status_code == 404
        judged = red.post(path, json={"state": "bad", "note": "wrong person"}).json()
        assert (judged["state"], judged["note"]) == ("bad", "wrong person") and judged["reviewed_by"]
        assert red.get("/console/api/quality").json()["unreviewed"] == 0
        added = [red.post(f"{path}/item", json={"set": "calls", "expected": "yes"}).json() for _ in range(2)]
        assert [each["num_items"] for each in added] == [1, 2]
        events = red.get("/v1/organization/audit_logs").json()["data"]
        assert [each["type"] for each in events].count("prompts.read") == 3, "each item makes a prompt readable"
        item = red.get("/v1/evaluations/calls/versions/2").json()["items"][0]
        assert item["messages"] == opened["input"]["messages"] and item["expected"] == "yes"
        assert blue.get(path).status_code == blue.post(path, json={"state": "good"}).status_code == 404
        assert blue.get("/console/api/review").json()["data"] == []


def test_only_administrators_review(kept: Any) -> None:
    with kept.add_tenant("red", log_prompts=True, role=Role.MEMBER) as red:
        ask(red, "hello")
        kept.do(kept.gateway.moderation.prompts.flush())
        assert red.get("/console/api/review").status_code == 403
        assert red.get("/console/api/review/1").status_code == 403
        seen = red.get("/console/api/quality").json()
        assert seen == {"scores": [], "feedback": [], "versions": [], "unreviewed": None}


def test_feedback_is_summed_for_who_may_see_it(kept: Any) -> None:
    with kept.add_tenant("red", role=Role.MEMBER) as red, kept.add_tenant("blue") as blue:
        answer = ask(red, "hello").json()["id"]
        for author, rating in (("a", "up"), ("b", "up"), ("c", "down")):
            body = {"request_id": answer, "user": author, "rating": rating, "score": 0.5}
            assert red.post("/v1/feedback", json=body).status_code == 200
        (day,) = red.get("/console/api/quality").json()["feedback"]
        assert (day["model"], day["up"], day["down"], day["count"], day["mean_score"]) == ("tiny", 2, 1, 3, 0.5)
        assert day["day_at"] % 86400 == 0
        (version,) = red.get("/console/api/quality").json()["versions"]
        assert version["share_up"] == pytest.approx(2 / 3) and version["compared_with"] is None
        assert blue.get("/console/api/quality").json()["feedback"] == []


def test_versions_are_compared_with_the_one_that_has_most_ratings() -> None:
    def day(version: str, up: int, down: int) -> FeedbackSum:
        return FeedbackSum(0, "m", version, up, down, up + down, None)

    old, new = compare_versions([day("1", 30, 10), day("1", 26, 4), day("2", 48, 32), day("3", 0, 0)])[:2]
    assert (old.up, old.down, old.compared_with) == (56, 14, "2")
    assert old.difference is not None and (old.difference.low, old.difference.high) == pytest.approx(
        (0.0524, 0.3339), abs=6e-5
    )
    assert new.compared_with is None and new.difference is None
