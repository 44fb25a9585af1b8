"""What a deployment's version keeps of a model's configuration."""

from __future__ import annotations

from typing import Any

import pytest

from kvarn.config.engine import EngineConfig
from kvarn.config.model import ModelConfig
from kvarn.fleet.desired import Desired, changed, model_of, spec_of

MODEL = {"name": "m", "path": "kvarn-demo"}


@pytest.mark.parametrize(
    "settings",
    [
        {"engine": {"max_num_seqs": EngineConfig().max_num_seqs}},
        {"replicas": 1, "autoscale": {"min_replicas": 0}},
        {"threads": None, "aliases": []},
        {"autoscale": {}},
    ],
)
def test_a_version_keeps_what_was_set_though_it_equals_a_default(settings: dict[str, Any]) -> None:
    model = ModelConfig.model_validate(MODEL | settings)
    spec = spec_of(model)
    assert spec == {"path": "kvarn-demo"} | settings
    kept = model_of("m", spec)
    assert kept == model and Desired(kept).count == Desired(model).count
    for section in ("engine", "autoscale"):
        one, other = getattr(kept, section), getattr(model, section)
        assert (one and one.model_fields_set) == (other and other.model_fields_set)


def test_what_is_set_by_a_deployment_is_kept_and_null_is_the_default_again() -> None:
    model = ModelConfig.model_validate(MODEL)
    set_seqs = changed(model, "m", {"engine": {"max_num_seqs": 256}})
    assert spec_of(set_seqs) == {"path": "kvarn-demo", "engine": {"max_num_seqs": 256}}
    assert spec_of(changed(set_seqs, "m", {"engine": {"max_num_seqs": None}})) == spec_of(model)


def test_a_version_that_was_stored_without_defaults_says_the_same_as_before() -> None:
    stored = {"path": "kvarn-demo", "engine": {"token_budget": 64}}
    model = model_of("m", stored)
    assert spec_of(model) == stored == spec_of(changed(model, "m", {"engine": {"token_budget": 64}}))
