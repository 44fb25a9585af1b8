"""YAML that people write means what it looks like."""

from __future__ import annotations

import pytest

from kvarn.config.load import load_config
from kvarn.config.yaml import parse_yaml


def test_a_key_named_off_is_a_text(tmp_path) -> None:
    path = tmp_path / "kvarn.yaml"
    path.write_text("alerts: {off: [KvarnPrefixHitRateLow]}", encoding="utf-8")
    assert load_config(path).alerts.off == ("KvarnPrefixHitRateLow",)


def test_a_day_needs_no_quotes(tmp_path) -> None:
    path = tmp_path / "kvarn.yaml"
    path.write_text("metering: {prices: [{model: chat, since: 2026-01-01}]}", encoding="utf-8")
    assert load_config(path).metering.prices[0].since == "2026-01-01"


@pytest.mark.parametrize(("text", "enabled"), [("off", False), ("no", False), ("false", False), ("on", True)])
def test_a_switch_may_be_written_in_the_older_words(tmp_path, text, enabled) -> None:
    path = tmp_path / "kvarn.yaml"
    path.write_text(f"alerts: {{enabled: {text}}}", encoding="utf-8")
    assert load_config(path).alerts.enabled is enabled


def test_numbers_and_null_are_those_of_yaml() -> None:
    assert parse_yaml("[1, 0.5, true, FALSE, null, ~, text]") == [1, 0.5, True, False, None, None, "text"]
