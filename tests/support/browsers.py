"""A browser that is not there."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

REQUIRED = "REQUIRE_BROWSER"
"""Environment variable; where it is set, a test that needs a browser fails without one."""


def no_browser(why: str) -> NoReturn:
    """Skip the test, or fail it where a browser is required."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{why} ({REQUIRED} is set)")
    pytest.skip(why)
