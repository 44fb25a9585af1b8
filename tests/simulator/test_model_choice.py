"""Routes, fallbacks, circuit breakers and external models in a simulation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvarn.costs.replica_model import Distribution
from kvarn.simulator import simulate
from kvarn.simulator.outcome import report
from kvarn.simulator.run import model_groups
from kvarn.simulator.scenario import Scenario, ScenarioError, scenario_of
from simulated_fleet import Run, modelled, requests

SERVER: dict[str, Any] = {"first_token_s": {"values": [0.4]}, "token_s": {"values": [0.01]}}
AWAY: dict[str, Any] = {"name": "away", "external": {"base_url": ["http://a/v1", "http://b/v1"]}}


def played_by(
    models: list[dict[str, Any]], asked: str = "", routes: tuple[dict[str, Any], ...] = (), **parts: Any
) -> Scenario:
    own = [each["name"] for each in models if "external" not in each]
    raw = {
        "config": {"models": models, "routes": list(routes)},
        "replicas": dict.fromkeys(own, modelled(start_s=Distribution((2.0,)))),
        "traffic": [{"model": asked, "rate": 5, "prompt_tokens": [40, 60], "output_tokens": [5, 20]}],
        "duration_s": 40,
    } | parts
    return scenario_of(raw, Path.cwd(), "test")


def run(scenario: Scenario, count: int = 40, every_s: float = 0.5) -> Run:
    asked = scenario.traffic[0].model
    stream = requests([every_s * number for number in range(count)])
    return Run(scenario, stream, asked=asked)


def ends_of(played: Run) -> Counter[str]:
    return Counter(
        each["event"] for each in played.events if each["event"] in ("answered", "refused", "failed", "left")
    )


def test_a_route_divides_its_requests_as_the_weights_say() -> None:
    models = [{"name": name, "path": "none"} for name in "ab"]
    route = {"name": "chat", "targets": [{"model": "a", "weight": 3}, {"model": "b", "weight": 1}]}
    played = run(played_by(models, "chat", (route,)), count=400, every_s=0.05)
    routed = Counter(each["model"] for each in played.named("routed"))
    assert routed["b"] == pytest.approx(100, abs=35)
    sent = Counter(each["replica"].partition("/")[0] for each in played.named("sent"))
    assert sent == routed
    assert ends_of(played) == {"answered": 400}


def test_requests_to_a_route_spend_time_around_steps_too() -> None:
    models, route = [{"name": "a", "path": "none"}], {"name": "chat", "targets": [{"model": "a"}]}
    around = modelled(gateway_s=0.05, answer_s=Distribution((0.2,)))
    played = [run(played_by(models, asked, (route,), replicas={"a": around}), count=1) for asked in ("chat", "a")]
    (by_route,), (by_model,) = [each.outcome.requests.ttft_s for each in played]
    assert by_route == by_model > 0.2


def test_rules_and_pins_of_a_route_hold() -> None:
    models = [{"name": name, "path": "none"} for name in "ab"]
    rules = [{"model": "b", "max_prompt_tokens": 64}]
    route = {"name": "chat", "targets": [{"model": "a"}], "rules": rules}
    played = run(played_by(models, "chat", (route,)), count=5)
    assert {(each["model"], each["reason"]) for each in played.named("routed")} == {("b", "rule")}


def test_an_external_model_answers_in_the_time_of_its_servers() -> None:
    played = run(played_by([AWAY], "away", externals={"away": SERVER}), count=3)
    assert played.times("first_token") == [pytest.approx(at + 0.4, abs=1e-5) for at in (0.0, 0.5, 1.0)]
    assert played.times("answered") == [pytest.approx(at + 0.4 + 0.19, abs=1e-5) for at in (0.0, 0.5, 1.0)]
    assert [each["tokens"] for each in played.named("answered")] == [20] * 3


def test_what_fails_is_tried_again_and_then_falls_back() -> None:
    """Each request fails at both servers before their breakers open, and another model answers it."""
    ladder = {"fallback": [{"model": "here"}]}
    models = [AWAY | ladder, {"name": "here", "path": "none"}]
    played = run(played_by(models, "away", externals={"away": SERVER | {"failure_rate": 1.0}}))
    assert ends_of(played) == {"answered": 40}
    assert {each["replica"].partition("/")[0] for each in played.named("sent")} == {"away", "here"}
    assert len(played.named("fallback", model="away", to="here", reason="error")) == 40
    opened = [each["t"] for each in played.named("breaker", state="open")]
    assert opened, "it fails each time"
    first = min(opened)
    tried = [each["t"] for each in played.named("attempt_failed")]
    assert len([at for at in tried if first < at < first + 5_000_000]) < 8, "20 requests come meanwhile"
    (told,) = report(played.outcome)["fallbacks"]
    assert told == {"model": "away", "to": "here", "reason": "error", "requests": 40}


def test_an_outage_ends_and_requests_come_back() -> None:
    models = [AWAY | {"fallback": [{"model": "here"}]}, {"name": "here", "path": "none"}]
    outages = [{"kind": "outage", "model": "away", "replica": number, "at_s": 5, "lasts_s": 5} for number in (0, 1)]
    played = run(played_by(models, "away", externals={"away": SERVER}, faults=outages), count=80)
    fallen = played.times("fallback")
    assert fallen
    assert min(fallen) >= 5
    assert max(fallen) < 30, "a trial goes through after the outage"
    assert ends_of(played) == {"answered": 80}


def test_a_killed_model_falls_back_and_an_answer_that_has_begun_stays() -> None:
    models = [
        {"name": "a", "path": "none", "fallback": [{"model": "b"}], "failover": {"max_losses": 0}},
        {"name": "b", "path": "none"},
    ]
    kill = [{"kind": "kill", "model": "a", "at_s": 1.7}]
    played = run(played_by(models, "a", faults=kill), count=8)
    assert {each["reason"] for each in played.named("fallback")} <= {"error", "not_ready"}
    assert played.named("fallback")
    begun = {each["request"] for each in played.named("first_token") if each["t"] < 1_700_000}
    assert not begun & {each["request"] for each in played.named("fallback")}
    assert sum(ends_of(played).values()) == 8


def test_an_overloaded_model_gives_to_one_that_would_be_in_time() -> None:
    models = [
        {"name": "a", "path": "none", "load_shedding": True, "fallback": "b", "engine": {"max_num_seqs": 1}},
        {"name": "b", "path": "none", "load_shedding": True},
    ]
    played = run(played_by(models, "a"), count=60, every_s=0.1)
    assert {each["reason"] for each in played.named("fallback")} == {"overload"}
    late = {each["request"] for each in played.named("refused")}
    assert late <= {each["request"] for each in played.named("queued")}, "they have waited too long for any model"
    assert ends_of(played) == {"answered": 60 - len(late), "refused": len(late)}


def test_a_slow_server_times_out_and_the_client_hears_of_the_first_error() -> None:
    slow = SERVER | {"first_token_s": {"values": [9.0]}}
    other = {"name": "other", "external": {"base_url": "http://c/v1"}}
    models = [
        AWAY | {"timeouts": {"first_token_s": 1.0}, "fallback": [{"model": "other"}]},
        other,
    ]
    externals = {"away": slow, "other": SERVER | {"failure_rate": 1.0}}
    played = run(played_by(models, "away", externals=externals), count=1)
    (ended,) = [each for each in played.events if each["event"] == "failed"]
    assert ended["reason"] == "timeout"
    assert ended["t"] == 2_000_000, "both servers were tried"


def test_models_that_answer_for_each_other_are_simulated_together_and_alike_each_time() -> None:
    models = [
        AWAY | {"fallback": [{"model": "a"}]},
        {"name": "a", "path": "none"},
        {"name": "b", "path": "none"},
        {"name": "alone", "path": "none"},
    ]
    route = {"name": "chat", "targets": [{"model": "away"}, {"model": "b"}], "fallback": [{"model": "a"}]}
    faults = [
        {"kind": "outage", "model": "away", "per_hour": 600, "lasts_s": 4},
        {"kind": "kill", "model": "b", "at_s": 5},
    ]
    both = played_by(models, "chat", (route,), externals={"away": SERVER}, faults=faults, duration_s=12)
    assert model_groups(both) == [["away", "a", "b"], ["alone"]]
    first, again = simulate(both), simulate(both.changed(["fast_forward=false"]))
    assert first.log_sha256 == again.log_sha256
    assert sum(first.fallbacks.values()) > 0
    assert len(first.requests) > 30


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"externals": {}}, "give its servers under `externals`"),
        ({"faults": [{"kind": "kill", "model": "away", "at_s": 1}]}, "outage"),
        ({"externals": {"away": SERVER | {"failure_rate": 2}}}, "failure_rate"),
        ({"rollouts": [{"model": "away"}]}, "external"),
    ],
)
def test_what_cannot_be_is_explained(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        played_by([AWAY], "away", **({"externals": {"away": SERVER}} | change))
