"""A device that computes while the next step is planned does not wait for the engine."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from benchmarks.device_idle import measure


@pytest.fixture
def _frozen() -> Iterator[None]:
    """As in the engine process: the garbage collector leaves what was there before alone."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_frozen")
def test_a_device_of_5_ms_a_step_and_256_rows_waits_less_than_3_percent() -> None:
    assert measure(rows=256, steps=40, step_s=0.005, max_in_flight=2) < 0.03
