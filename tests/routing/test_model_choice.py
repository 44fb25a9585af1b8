"""Which model a route's name stands for: properties of the weights, and each rule by itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.config.routes import FallbackConfig, RouteConfig, TargetConfig
from kvarn.routing.model_choice import (
    ModelChoice,
    RequestFeatures,
    RequestSubject,
    choose_model,
    choose_target,
    is_shadowed,
    next_fallback,
    sticky_unit,
)
from profiles import examples

WEIGHTS = st.lists(st.integers(0, 10), min_size=1, max_size=5).filter(any)
UNITS = [f"unit-{number}" for number in range(200)]
ALICE = RequestSubject(organization="org", project="proj", key="key", user="alice", session="s1", request="r1")


def targets(weights: list[int]) -> list[TargetConfig]:
    return [TargetConfig(model=f"m{number}", weight=weight) for number, weight in enumerate(weights)]


def route(**fields: Any) -> RouteConfig:
    return RouteConfig.model_validate({"name": "chat", "targets": [{"model": "large"}], **fields})


def unknown(model: str) -> None:
    return None


@settings(max_examples=examples(100))
@given(WEIGHTS, st.data())
def test_when_a_weight_grows_units_move_only_to_its_target(weights: list[int], data: st.DataObject) -> None:
    grown = data.draw(st.integers(0, len(weights) - 1))
    more = [weight + 3 * (number == grown) for number, weight in enumerate(weights)]
    for unit in UNITS:
        before, after = choose_target("r", targets(weights), unit), choose_target("r", targets(more), unit)
        assert after in (before, f"m{grown}")


@settings(max_examples=examples(60))
@given(WEIGHTS, st.randoms(use_true_random=False))
def test_the_order_of_targets_does_not_matter_and_weight_0_gets_nothing(weights: list[int], random: Any) -> None:
    shuffled = targets(weights)
    random.shuffle(shuffled)
    for unit in UNITS[:50]:
        chosen = choose_target("r", targets(weights), unit)
        assert chosen == choose_target("r", shuffled, unit)
        assert weights[int(chosen[1:])] > 0


def test_each_target_gets_the_part_of_its_weight() -> None:
    counts = Counter(choose_target("r", targets([90, 9, 1]), str(number)) for number in range(20_000))
    for model, share in (("m0", 0.9), ("m1", 0.09), ("m2", 0.01)):
        deviation = (share * (1 - share) / 20_000) ** 0.5
        assert abs(counts[model] / 20_000 - share) < 5 * deviation


def test_two_routes_assign_independently() -> None:
    both = Counter(tuple(choose_target(salt, targets([1, 1]), unit) for salt in ("a", "b")) for unit in UNITS * 1)
    assert len(both) == 4 and min(both.values()) > 20


@pytest.mark.parametrize(
    ("sticky", "same", "other"),
    [
        ("user", {"session": "x", "key": "x", "request": "x"}, {"user": "bob"}),
        ("session", {"user": "x", "key": "x", "request": "x"}, {"session": "s2"}),
        ("key", {"user": "x", "session": "x", "request": "x"}, {"key": "other"}),
        ("project", {"user": "x", "session": "x", "key": "x", "request": "x"}, {"project": "other"}),
        ("request", {"user": "x", "session": "x", "key": "x"}, {"request": "r2"}),
    ],
)
def test_who_stays_with_a_target(sticky: str, same: dict[str, str], other: dict[str, str]) -> None:
    from dataclasses import replace

    config = route(sticky=sticky)
    unit = sticky_unit(config, ALICE)
    assert sticky_unit(config, replace(ALICE, **same)) == unit
    assert sticky_unit(config, replace(ALICE, **other)) != unit


def test_without_a_user_the_key_counts_then_the_project_and_users_of_tenants_differ() -> None:
    config = route()
    nobody = RequestSubject(project="proj", key="key")
    assert sticky_unit(config, nobody) == sticky_unit(route(sticky="key"), ALICE)
    assert sticky_unit(config, RequestSubject(project="proj")) == sticky_unit(route(sticky="project"), ALICE)
    twins = [RequestSubject(project=project, user="u") for project in ("a", "b")]
    assert sticky_unit(config, twins[0]) != sticky_unit(config, twins[1])


def test_pins_go_first_and_the_narrowest_of_them() -> None:
    pins = [{"organization": "org", "model": "a"}, {"project": "proj", "model": "b"}, {"key": "key", "model": "c"}]
    rules = [{"model": "small", "tools": False}]
    config = route(pins=pins, rules=rules)
    subject = {"organization": "org", "project": "proj", "key": "key"}
    for model in ("c", "b", "a"):
        assert choose_model(config, RequestSubject(**subject), RequestFeatures(), unknown) == ModelChoice(model, "pin")
        subject.popitem()
    assert choose_model(config, RequestSubject(), RequestFeatures(), unknown) == ModelChoice("small", "rule")


@pytest.mark.parametrize(
    ("rule", "holds", "not_"),
    [
        ({"max_prompt_tokens": 100}, {"prompt_tokens": 100}, {"prompt_tokens": 101}),
        ({"max_output_tokens": 50}, {"max_output_tokens": 50}, {"max_output_tokens": 51}),
        ({"max_output_tokens": 50}, {"max_output_tokens": 1}, {"max_output_tokens": None}),
        ({"tools": True}, {"tools": True}, {"tools": False}),
        ({"batch": True}, {"batch": True}, {"batch": False}),
        ({"reasoning_effort": ["low", "none"]}, {"reasoning_effort": "low"}, {"reasoning_effort": None}),
        ({"reasoning_effort": ["medium"]}, {"reasoning_effort": None}, {"reasoning_effort": "high"}),
    ],
)
def test_each_condition_of_a_rule(rule: dict[str, Any], holds: dict[str, Any], not_: dict[str, Any]) -> None:
    config = route(rules=[{"model": "small", **rule}])
    assert choose_model(config, ALICE, RequestFeatures(**holds), unknown).model == "small"
    assert choose_model(config, ALICE, RequestFeatures(**not_), unknown).model == "large"


def test_a_rule_on_load_asks_for_the_prediction_of_the_model_that_would_answer() -> None:
    config = route(rules=[{"model": "small", "predicted_ttft_above_s": 1.5}])
    seconds: dict[str, float | None] = {"large": 1.6, "small": 9}
    assert choose_model(config, ALICE, RequestFeatures(), seconds.get).model == "small"
    for predicted in (1.5, None):
        seconds["large"] = predicted
        assert choose_model(config, ALICE, RequestFeatures(), seconds.get).model == "large"


def test_the_share_of_shadowed_requests() -> None:
    config = route(shadow={"model": "next", "share": 0.1})
    shadowed = sum(is_shadowed(config, f"request-{number}") for number in range(10_000))
    assert abs(shadowed - 1000) < 5 * (10_000 * 0.1 * 0.9) ** 0.5
    assert not is_shadowed(route(), "request-1")


def test_the_next_fallback_is_the_first_of_its_reason_that_was_not_tried() -> None:
    ladders = {
        "large": [FallbackConfig(model="small", on=("overload",)), FallbackConfig(model="hosted")],
        "chat": [FallbackConfig(model="last", on=("error", "not_ready"))],
    }
    owners = ["large", "chat"]
    assert next_fallback("overload", owners, ladders, {"large"}) == "small"
    assert next_fallback("overload", owners, ladders, {"large", "small"}) == "hosted"
    assert next_fallback("timeout", owners, ladders, {"large"}) == "hosted"
    assert next_fallback("error", owners, ladders, {"large", "hosted"}) == "last"
    assert next_fallback("overload", owners, ladders, {"large", "small", "hosted"}) is None
    assert next_fallback("error", ["unknown"], ladders, set()) is None
