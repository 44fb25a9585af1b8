from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_flag_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile of the tests is named like a setting, and is none."""
    monkeypatch.delenv("KVARN_TEST_PROFILE", raising=False)
