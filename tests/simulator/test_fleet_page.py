"""The scenario of the page about failures and rollouts plays as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from kvarn.config.yaml import parse_yaml
from kvarn.simulator import Scenario, simulate

PAGE = (Path(__file__).parents[2] / "docs/guides/simulate_fleet.md").read_text(encoding="utf-8")
WHOLE, SPECULATION, ROUTES = (parse_yaml(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
SCENARIO = Scenario.model_validate(WHOLE)
(PRINTED,) = (block.splitlines() for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.parametrize("until_s", [126, pytest.param(600, marks=pytest.mark.thorough)])
def test_the_printed_events_are_those_of_the_scenario(until_s: int, tmp_path: Path) -> None:
    printed = [line for line in PRINTED if msgspec.json.decode(line)["t"] <= until_s * 1e6]
    assert len(printed) >= 7
    log = tmp_path / "events.jsonl"
    simulate(SCENARIO.changed([f"duration_s={until_s}"]), log=log)
    assert set(printed) <= set(log.read_text(encoding="utf-8").splitlines())


def test_the_printed_speculation_and_routes_can_be_simulated() -> None:
    guessing = WHOLE["replicas"]["chat"] | SPECULATION["replicas"]["chat"]
    traffic = [{"model": "chat", "rate": 2}]
    alone = {"name": "chat", "path": "chat"}
    for raw in (
        {"config": {"models": [alone]}, "replicas": {"chat": guessing}},
        ROUTES | {"replicas": {"large": WHOLE["replicas"]["chat"]}},
    ):
        outcome = simulate(Scenario.model_validate(raw | {"traffic": traffic, "duration_s": 5}))
        assert len(outcome.requests) > 3
