"""How thorough the tests are: short (`make test`) or thorough (`make test-long`, `KVARN_TEST_PROFILE=thorough`)."""

from __future__ import annotations

import os
from typing import Any

import pytest

THOROUGH = os.environ.get("KVARN_TEST_PROFILE") == "thorough"


def effort(short: int, thorough: int) -> int:
    """How often something is repeated, in this profile."""
    return thorough if THOROUGH else short


def examples(count: int) -> int:
    """Examples of a property: a third of `count`, or four times as many."""
    return effort(max(10, count // 3), 4 * count)


def sample(*values: Any) -> Any:
    """A value (or a row of values) of a parameter that every profile runs, in a file whose other tests run only where
    the kernels differ from those recorded; see `kernel_digest`."""
    return pytest.param(*values, marks=pytest.mark.sample)


def thorough(*values: Any) -> Any:
    """A value (or a row of values) of a parameter that only the thorough profile runs; `pytest.mark.thorough` on a test
    leaves all of it to that profile."""
    return pytest.param(*values, marks=pytest.mark.thorough)
