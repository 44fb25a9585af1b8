"""Variables that begin with KVARN_ and are no settings."""

from __future__ import annotations

import pytest

from kvarn.config.load import ConfigError, load_config


def test_what_is_read_elsewhere_is_no_unknown_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVARN_ISA", "generic")
    monkeypatch.setenv("KVARN_API_KEY", "secret")
    assert load_config().models[0].name == "kvarn-demo"


def test_a_misspelt_one_still_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVARN_ISE", "generic")
    with pytest.raises(ConfigError, match="KVARN_ISE names no setting"):
        load_config()
