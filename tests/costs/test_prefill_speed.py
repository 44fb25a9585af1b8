"""The closed form of prompt times against a plain loop over steps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.config.engine import EngineConfig
from kvarn.costs.prefill_speed import PrefillSpeed, longest_step_s
from profiles import examples

configs = st.builds(
    EngineConfig,
    token_budget=st.integers(32, 4096),
    tpot_target_ms=st.floats(10, 500),
    max_prefill_stretch=st.floats(1, 3),
    min_prefill_chunk=st.integers(1, 32),
)


def loop_s(config: EngineConfig, tokens: float, token_s: float, rows: int, decode_s: float, limit_s: float | None):
    """Step by step: as many tokens as fit, until none are left."""
    seconds, budget = 0.0, config.token_budget - rows
    while tokens > 0:
        fits = (longest_step_s(config, decode_s, limit_s) - decode_s) / token_s if rows else budget
        chunk = min(tokens, max(1.0, min(budget, max(fits, config.min_prefill_chunk))))
        seconds += decode_s + chunk * token_s
        tokens -= chunk
    return seconds


@settings(max_examples=examples(300), derandomize=True)
@given(
    config=configs,
    tokens=st.integers(1, 3000),
    token_s=st.floats(1e-6, 1e-3),
    rows=st.integers(0, 31),
    decode_s=st.floats(1e-3, 0.1),
    limit_s=st.none() | st.floats(0.01, 0.5),
)
def test_prompts_take_as_long_as_a_plain_loop_says(config, tokens, token_s, rows, decode_s, limit_s):
    speed = PrefillSpeed.beside(decode_s, rows, token_s, config, limit_s)
    expected = loop_s(config, float(tokens), token_s, rows, decode_s, limit_s)
    # Where the tokens fill their steps to the last, rounding may make it one step more.
    assert speed.seconds(tokens, tokens * token_s) == pytest.approx(expected, rel=1e-6, abs=decode_s * 1.001)
    assert speed.tokens_per_s(token_s) == pytest.approx(speed.chunk / (decode_s + speed.chunk * token_s))
