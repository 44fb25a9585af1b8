"""Settings of speculation."""

from __future__ import annotations

import pytest

from kvarn.config.speculation import SpeculationConfig


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "draft_model"}, "needs `model`"),
        ({"method": "ngram", "model": "x"}, "uses no `model`"),
        ({"prompt_lookup_min": 5, "prompt_lookup_max": 4}, "must not be less"),
        ({"method": "eagle3"}, "needs `model`: the head"),
        ({"method": "medusa"}, "eagle3"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SpeculationConfig.model_validate(settings)
