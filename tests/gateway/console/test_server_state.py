"""The sentence that says how the server is: the most important thing first."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kvarn.gateway.console.server_state import SIGNS, ModelHealth, ServerState, seconds, server_state, state_begin
from kvarn.observe.samples import SERIES

GOOD = {"requests": 100.0, "judged_requests": 100.0, "goodput_ratio": 0.99, "error_ratio": 0.0, "kv_utilisation": 0.4}
RECENT = {"requests_per_s": 212 / 60, "ttft_p95_s": 0.31, "kv_utilisation": 0.41}


def model(name: str = "chat", recent: dict[str, Any] | None = None, **changed: Any) -> ModelHealth:
    fields = {"ready": True, "state": "ready", "ready_replicas": 1, "replicas": 1}
    fields |= {"ttft_target_s": 1.0, "tpot_target_s": 0.1} | changed
    return ModelHealth(name=name, recent=GOOD | (recent or {}), **fields)


def state(
    *models: ModelHealth, database: str = "up", whole: dict[str, float] | None = None, sees_alerts: bool = True
) -> ServerState:
    requests = {"requests": 12720.0} if whole is None else whole
    return server_state(models, database, RECENT, requests, sees_alerts=sees_alerts)


def test_all_well() -> None:
    assert state(model()).sentence == "All well: 212 requests/min, TTFT p95 0.31 s, KV 41 %."
    assert state(model(), whole={}).sentence == "All well, and idle: no requests in this time."


@pytest.mark.parametrize(
    ("broken", "level", "sentence", "link"),
    [
        (
            model(ready=False, ready_replicas=0, state="starting (load weights, 40 %)"),
            "warn",
            "chat takes no requests: starting (load weights, 40 %).",
            "models?model=chat",
        ),
        (
            model(ready=False, ready_replicas=0, state="down"),
            "bad",
            "chat takes no requests: down.",
            "models?model=chat",
        ),
        (
            model(drifted=["host/chat/1"]),
            "bad",
            "host/chat/1 answers golden prompts of chat wrongly.",
            "models?model=chat",
        ),
        (
            model(recent={"error_ratio": 0.12}),
            "bad",
            "12 % of the requests to chat fail.",
            "requests?model=chat&status=5xx",
        ),
        (
            model(recent={"goodput_ratio": 0.6, "ttft_p95_s": 2.9, "waiting_blocks": 7.0, "waiting_slot": 2.0}),
            "bad",
            "Slow: 40 % of the requests to chat miss their latency targets (TTFT p95 2.90 s, target 1.00 s); most "
            "wait for KV blocks.",
            "requests?model=chat&order=slowest",
        ),
        (
            model(recent={"goodput_ratio": 0.6, "ttft_p95_s": 2.9, "waiting_preempted": 2.0}),
            "bad",
            "Slow: 40 % of the requests to chat miss their latency targets (TTFT p95 2.90 s, target 1.00 s); most "
            "were preempted and wait to run again.",
            "requests?model=chat&order=slowest",
        ),
        (
            model(recent={"goodput_ratio": 0.6, "ttft_p95_s": 0.5, "tpot_p95_s": 0.25}),
            "bad",
            "Slow: 40 % of the requests to chat miss their latency targets (TPOT p95 0.25 s, target 0.10 s).",
            "requests?model=chat&order=slowest",
        ),
        (
            model(recent={"kv_utilisation": 0.97}),
            "warn",
            "The KV cache of chat is full (97 %): requests wait or are preempted.",
            "live?model=chat",
        ),
        (model(replicas=2), "warn", "1 of 2 replicas of chat take requests.", "models?model=chat"),
    ],
)
def test_what_is_wrong_with_a_model(broken: ModelHealth, level: str, sentence: str, link: str) -> None:
    found = state(model("other"), broken)
    assert replace(found, sign="") == ServerState(level, sentence, link, "chat")
    assert found.sign in ("", *SIGNS)


def test_what_is_broken_comes_before_what_is_slow_and_the_database_before_all() -> None:
    slow, down = model("slow", {"goodput_ratio": 0.1}), model("gone", ready=False, state="down")
    assert state(slow, down).model == "gone"
    away = state(slow, down, database="away")
    assert away.sentence.startswith("The database does not answer") and away.link == "alerts"
    assert state(slow, down, database="away", sees_alerts=False).link == "", "alerts are the platform's"


@pytest.mark.parametrize(
    ("values", "since"),
    [
        ([0.1, 0.1, 0.9, 0.9], 20.0),
        ([0.1, 0.1, 0.9, 0.1, None, 0.9], 20.0),  # one interval between is of the same trouble
        ([0.9, 0.1, 0.1, None, 0.9, 0.9], 40.0),
        ([0.1, 0.9, 0.9, 0.1], 10.0),
        ([0.1, 0.9, 0.1, 0.1], None),  # it is well now
        ([None, 0.9, 0.9], None),  # it may have begun before
        ([None, None], None),
        ([], None),
    ],
)
def test_a_trouble_began_after_the_last_intervals_without(values: list[float | None], since: float | None) -> None:
    at = [10.0 * (place + 1) for place in range(len(values))]
    assert state_begin(at, values, lambda value: value <= 0.5) == since


def test_each_trouble_with_a_series_is_told_by_one_that_the_history_has() -> None:
    assert {each.series for each in SIGNS.values()} <= set(SERIES)
    slow = state(model(recent={"goodput_ratio": 0.5}))
    assert not SIGNS[slow.sign].is_well(0.5) and SIGNS[slow.sign].is_well(0.99)


def test_few_requests_and_sleeping_models_are_no_reason_to_worry() -> None:
    few = model(recent={"goodput_ratio": 0.0, "judged_requests": 3.0, "error_ratio": 1.0, "requests": 3.0})
    asleep = model("asleep", ready=False, ready_replicas=0, replicas=0, state="no replicas")
    assert state(few, asleep).level == "good"


def test_a_name_is_quoted_in_a_link() -> None:
    assert state(model("a b&c", {"kv_utilisation": 1.0})).link == "live?model=a%20b%26c"


def test_times_have_two_digits_that_count() -> None:
    assert [seconds(each) for each in (0.0451, 0.31, 2.9, 12.34)] == ["45 ms", "0.31 s", "2.90 s", "12 s"]
