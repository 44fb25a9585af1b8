"""What a record tells of the time between steps, on an engine whose steps and pauses are known."""

from __future__ import annotations

import random
import statistics

import pytest

from kvarn.bench.load_profile import distribution, overheads, timed_steps
from kvarn.clock.virtual import VirtualClock
from kvarn.config.engine import EngineConfig
from kvarn.costs.step_times import StepTimes
from kvarn.engine.core import EngineParts
from kvarn.engine.schedule_record import Event, RecordingCore
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.modelled import ModelledExecutor

TIMES = StepTimes(fixed_s=2e-3, prefill_token_s=1e-4, decode_row_s=1e-4)


def recorded(pause_s: float) -> list[Event]:
    """Two busy times with a rest between them."""
    clock, events = VirtualClock(10.0), []
    executor = ModelledExecutor(TIMES.seconds, clock, num_blocks=256, max_context_length=512)
    core = RecordingCore(EngineParts(executor, EngineConfig()), clock.now, events.append)
    for turn in range(2):
        for number in range(4):
            sampling = SamplingParams(seed=0, max_tokens=5 + number)
            prompt = list(range(300, 340))
            core.add(Submit(request_id=f"{turn}/{number}", prompt_token_ids=prompt, sampling=sampling))
        while core.has_work():
            core.step()
            clock.sleep(pause_s)
        clock.sleep(5.0)
    return events


def test_the_time_between_steps_is_what_passed_and_rests_are_none_of_it():
    steps = timed_steps(recorded(0.0007))
    assert [step.elapsed_s for step in steps] == pytest.approx([TIMES.seconds(step.shape) for step in steps])
    assert sum(not step.follows for step in steps) == 2  # the first ones of the two busy times
    assert [seconds for _, seconds in overheads(steps)] == pytest.approx([0.0007] * len(overheads(steps)))
    assert {rows for rows, _ in overheads(steps)} == {1, 2, 3, 4}


def test_a_distribution_keeps_the_mean_however_long_its_tail():
    chance = random.Random(3)
    values = [chance.random() * 1e-3 + (0.05 if chance.random() < 0.02 else 0.0) for _ in range(5000)]
    found = distribution(values)
    assert statistics.fmean(found.values) == pytest.approx(statistics.fmean(values))
    assert found.at(0.5) == pytest.approx(statistics.median(values), rel=0.02)
    drawn = statistics.fmean(found.at(chance.random()) for _ in range(50_000))
    assert drawn == pytest.approx(statistics.fmean(values), rel=0.15)


def test_few_values_and_none_have_a_distribution():
    assert distribution([]).is_zero
    assert distribution([0.25]).at(0.9) == 0.25
    assert distribution([3.0, 1.0]).at(0.0) == 1.0
