"""Predicted times against a plain loop over steps, and against the real scheduler."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission_world import TIMES, AdmissionWorld, Call
from kvarn.admission.demand import Demand
from kvarn.admission.predictor import Load, Mix, Predictor
from kvarn.config.engine import EngineConfig
from kvarn.costs.step_times import StepTimes
from profiles import examples

times = st.builds(
    StepTimes,
    fixed_s=st.floats(1e-3, 5e-2),
    prefill_token_s=st.floats(1e-6, 1e-3),
    prefill_pair_s=st.sampled_from([0.0, 1e-9, 1e-8]),
    decode_row_s=st.floats(0, 2e-3),
    decode_token_s=st.floats(0, 1e-6),
)
configs = st.builds(
    EngineConfig,
    token_budget=st.integers(32, 4096),
    tpot_target_ms=st.floats(10, 500),
    max_prefill_stretch=st.floats(1, 3),
    min_prefill_chunk=st.integers(1, 32),
)


@settings(max_examples=examples(200), derandomize=True)
@given(times=times, config=configs, tokens=st.integers(1, 3000), more=st.integers(0, 3000), rows=st.integers(0, 200))
def test_more_before_it_never_makes_a_request_sooner(times, config, tokens, more, rows):
    predictor, mix = Predictor(times, config), Mix(200, 20_000, 50, 300)
    demand = Demand(tenant="t", prompt_tokens=tokens, output_tokens=10, arrival_s=0)
    less = predictor.first_token_s(demand, Load(rows, rows, rows * 100, 0), mix)
    assert predictor.first_token_s(demand, Load(rows, rows, rows * 100, more), mix) >= less - 1e-9
    assert predictor.tpot_s(rows + 1, 100 * (rows + 1), mix) >= predictor.tpot_s(rows, 100 * rows, mix) - 1e-9


@pytest.mark.parametrize("rows", [0, 10, 60])
@pytest.mark.parametrize("prompt", [40, 700, 3000])
def test_first_tokens_come_from_the_real_scheduler_when_foretold(rows, prompt):
    """An engine that decodes `rows` sequences gets a prompt."""
    config = EngineConfig(tpot_target_ms=50.0, prefix_cache=False)
    world = AdmissionWorld(admission=False, targets=False, config=config)
    running = [Call(0.0, f"t{index}", 100, 1000) for index in range(rows)]
    asked = Call(2.5, "asker", prompt, 5)
    world.play([*running, asked], 6.0)
    predictor = Predictor(TIMES, world.config)
    decoded = 100 + sum(2.5 / predictor.decode_s(rows, 0) for _ in range(rows)) / max(1, rows)
    load = Load(rows, rows, rows * decoded, 0)
    demand = Demand(tenant="asker", prompt_tokens=prompt, output_tokens=5, arrival_s=2.5)
    predicted = predictor.first_token_s(demand, load, Mix(100, 5050, 100, 300))
    assert asked.ttft is not None
    assert predicted == pytest.approx(asked.ttft, rel=0.2, abs=predictor.decode_s(rows, rows * decoded))


def test_service_times_of_all_that_is_served_add_up_to_the_time_that_passes():
    """So a queue's sum of them is how long it takes to drain."""
    world = AdmissionWorld(admission=False, config=EngineConfig(max_num_seqs=24, tpot_target_ms=50, prefix_cache=False))
    calls = [Call(0.0, "t", 50 + index % 150, 20 + index % 40) for index in range(400)]
    world.play(calls, 60.0)
    ended = max(call.end or 60.0 for call in calls)
    predictor = Predictor(TIMES, world.config)
    prompt = sum(call.prompt for call in calls) / len(calls)
    output = sum(call.output for call in calls) / len(calls)
    mix = Mix(prompt, prompt * prompt / 2, output, prompt + 2 * output)
    demands = [Demand(tenant="t", prompt_tokens=c.prompt, output_tokens=c.output, arrival_s=0) for c in calls]
    row_s = predictor.row_s(24, mix)
    assert sum(predictor.service_s(each, row_s) for each in demands) == pytest.approx(ended, rel=0.1)
