"""Stages of a model: consecutive layers, each in one stage."""

from __future__ import annotations

import pytest

from kvarn.specs.place import Stage, StageError


def test_each_layer_is_in_one_stage_and_stages_are_about_equal() -> None:
    stages = [list(Stage(index, 3).layers(7)) for index in range(3)]
    assert [layer for stage in stages for layer in stage] == list(range(7))
    assert {len(stage) for stage in stages} == {2, 3}


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(StageError, match="3 layers cannot be divided into 4 stages: lower pipeline_parallel_size"):
        Stage(0, 4).layers(3)
