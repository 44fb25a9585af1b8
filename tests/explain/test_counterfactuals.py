"""Counterfactuals against what really happens otherwise: the same world, run again."""

from __future__ import annotations

import math
import random
from statistics import median

import msgspec
import pytest

from explained_world import Asked, ExplainedWorld, asked, mixed_load
from kvarn.costs.step_times import StepShape

CONFIG = {"num_blocks": 600, "max_num_seqs": 24, "token_budget": 512}


NOISE = 0.1
"""Standard deviation of the logarithm of a step's time."""


def step_s(shape: StepShape) -> float:
    """The larger of what a step reads and what it computes: no sum of parts, as the engine's model of it is."""
    read_s = 0.009 + 1.5e-7 * shape.decode_context
    computed_s = 1.6e-4 * (shape.prefill_tokens + shape.decode_rows) + 4e-9 * shape.prefill_pairs
    return 0.002 + max(read_s, computed_s)


def noisy_world(patch: pytest.MonkeyPatch, seed: int, max_in_flight: int) -> ExplainedWorld:
    """An engine that has to learn step times which are other than it expects, and never quite the same."""
    chance = random.Random(seed)
    slowness = lambda now: math.exp(chance.gauss(0.0, NOISE))  # noqa: E731
    return ExplainedWorld(patch, step_s=step_s, slowness=slowness, max_in_flight=max_in_flight, **CONFIG)


def changes(found) -> dict[str, float]:
    return {each.change: each.total_s for each in found.counterfactuals}


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_alone_is_what_a_request_takes_alone_by_learned_step_times(monkeypatch, max_in_flight):
    world = noisy_world(monkeypatch, 1, max_in_flight)
    loaded = mixed_load(world, 300, seed=2)
    errors = []
    for number, name in enumerate(random.Random(3).sample(sorted(loaded), 50)):
        expected = changes(loaded[name].explained())["alone"]
        again = noisy_world(monkeypatch, 100 + number, max_in_flight)
        turn = loaded[name].steps[name].turns[0]
        delays = {event: late_s for event, late_s in world.delays[name].items() if event != "stage.admission"}
        request = asked(name, 0.0, turn.prompt_tokens, loaded[name].request.turns[0].output_tokens)
        measured = again.play([Asked(0.0, request.message, delays)])[name].total_s
        errors.append(abs(expected - measured) / measured)
    assert median(errors) <= 0.15
    assert max(errors) < 0.5


def test_a_faster_reader_is_what_a_request_takes_with_one(monkeypatch):
    slow, fast = (
        ExplainedWorld(monkeypatch).play([asked("mine", 0.0, 50, 20, delays={"generated": late_s})])["mine"]
        for late_s in (2.0, 0.0)
    )
    assert changes(slow.explained())["reader"] == pytest.approx(fast.total_s, abs=0.002)


def test_without_others_prompts_is_what_a_request_takes_beside_answers_alone(monkeypatch):
    mine = asked("mine", 0.0, 20, 20)
    prompts = [asked(f"o{number}", 0.05 + number / 10, 1500, 1) for number in range(4)]
    found = ExplainedWorld(monkeypatch).play([mine, *prompts])["mine"].explained()
    measured = ExplainedWorld(monkeypatch).play([mine])["mine"].total_s
    assert changes(found)["chunks"] == pytest.approx(measured, rel=0.1)


def test_a_cached_prefix_is_what_a_request_takes_with_one(monkeypatch):
    world = ExplainedWorld(monkeypatch)
    world.warm()
    first = asked("mine", 0.0, 1600, 10)
    again = Asked(2.0, msgspec.structs.replace(first.message, request_id="again"))
    answered = world.play([first, again])
    expected = changes(answered["mine"].explained())["cached"]
    assert expected == pytest.approx(answered["again"].total_s, rel=0.05)


def test_one_more_replica_is_told_between_now_and_alone(monkeypatch):
    world = ExplainedWorld(monkeypatch, max_num_seqs=1)
    others = [asked(f"o{number}", 0.0, 20, 30) for number in range(4)]
    found = world.play([*others, asked("mine", 0.01, 20, 3)])["mine"].explained()
    told = changes(found)
    assert told["alone"] < told["replica"] < found.total_s
    assert ". One more replica: about " in found.text, "what it spares is known to a half"
    half = ExplainedWorld(monkeypatch, max_num_seqs=1)
    measured = half.play([*others[:2], asked("mine", 0.01, 20, 3)])["mine"].total_s
    assert told["replica"] == pytest.approx(measured, rel=0.15)


def test_a_change_is_told_only_where_its_band_is_narrower_than_what_it_spares(monkeypatch):
    """Times of steps that scatter far more than the model of them."""
    for deviation, is_told in ((0.1, True), (2.0, False)):
        chance = random.Random(1)
        slowness = lambda now, d=deviation, c=chance: math.exp(c.gauss(0.0, d))  # noqa: E731
        world = ExplainedWorld(monkeypatch, slowness=slowness)
        world.warm()
        prompts = [asked(f"o{number}", 0.05 + number / 10, 1500, 1) for number in range(4)]
        found = world.play([asked("mine", 0.0, 20, 20), *prompts])["mine"].explained()
        assert ("chunks" in changes(found)) == is_told
        for each in found.counterfactuals:
            spared_s = found.total_s - each.total_s
            assert each.change == "alone" or each.error_s <= spared_s / 2 + 1e-9
            assert ("about" in each.text) == (each.error_s > spared_s / 4)


def test_without_learned_step_times_no_work_is_predicted(monkeypatch):
    found = ExplainedWorld(monkeypatch).play([asked("mine", 0.0, 1600, 3)])["mine"].explained()
    assert not {"alone", "cached"} & set(changes(found))
