"""Guesses in a simulation: as many are right as is stated, they take the time that is stated, and no token is lost."""

from __future__ import annotations

from typing import Any

import pytest

from kvarn.costs.speculation_model import SpeculationModel
from kvarn.costs.step_times import StepTimes
from kvarn.simulator.outcome import report
from kvarn.simulator.scenario import FaultConfig, ScenarioError
from simulated_fleet import Run, modelled, requests, scenario

ALWAYS = {"method": "draft_model", "model": "none", "adaptive": False}


def guessing(
    acceptance: tuple[float, ...],
    settings: dict[str, Any],
    output: int,
    *,
    times: StepTimes | None = None,
    **seconds: float,
) -> Run:
    """One answer after a prompt of 16 tokens."""
    replica = modelled(
        speculation=SpeculationModel(acceptance=acceptance, **seconds),
        step_times=times or StepTimes(fixed_s=0.02, decode_row_s=1e-3),
    )
    return Run(scenario({"speculation": settings}, replica=replica), requests([1.0], prompt=16, output=output))


@pytest.mark.parametrize(("acceptance", "length"), [((0.7,), 4), ((0.9, 0.5, 0.2), 3), ((1.0, 0.0), 6), ((0.0,), 2)])
def test_a_row_brings_as_many_tokens_as_the_acceptance_says(acceptance: tuple[float, ...], length: int) -> None:
    """1 + a1 + a1 a2 + ... (Leviathan et al. 2023, equation 1, where all are equal)."""
    run = guessing(acceptance, ALWAYS | {"num_speculative_tokens": length}, output=3000)
    expected, chance = 1.0, 1.0
    for place in range(length):
        chance *= acceptance[min(place, len(acceptance) - 1)]
        expected += chance
    engines = run.outcome.deployments[0].engines
    assert 1 + engines.accepted / engines.verified == pytest.approx(expected, rel=0.03)
    assert engines.proposed == pytest.approx(length * engines.verified, rel=0.01), "fewer before the end of the answer"
    (told,) = run.named("speculation")
    assert (told["rows"], told["proposed"], told["accepted"]) == (engines.verified, engines.proposed, engines.accepted)
    assert report(run.outcome)["deployments"][0]["speculation"]["accepted"] == engines.accepted


def test_a_step_takes_its_guesses_their_verification_and_the_following_of_its_states() -> None:
    run = guessing(
        (1.0,), ALWAYS | {"num_speculative_tokens": 3}, output=44, call_s=2e-3, pass_s=1e-3, row_s=5e-4, follow_s=4e-3
    )
    (first,), (last,) = run.times("first_token"), run.times("answered")
    guessed = 2e-3 + 3 * (1e-3 + 5e-4)
    assert last - first == pytest.approx(10 * (guessed + 4e-3 + 0.02 + 4 * 1e-3), abs=1e-5), (
        "4 tokens a step, the first with the prompt"
    )


def test_the_engine_stops_asking_for_guesses_that_are_wrong() -> None:
    """Where guessing itself takes long, and where following the states of each step does."""
    for seconds in ({"pass_s": 5e-3}, {"pass_s": 1e-4, "follow_s": 5e-3}):
        without = guessing((0.0,), {"method": "none"}, output=3000, **seconds)
        run = guessing((0.0,), {"method": "draft_model", "model": "none"}, output=3000, **seconds)
        assert run.outcome.deployments[0].engines.verified < 300
        assert run.outcome.ended_s < 1.05 * without.outcome.ended_s
    right = guessing((0.8,), {"method": "draft_model", "model": "none"}, output=3000, pass_s=1e-4)
    assert right.outcome.ended_s < 0.5 * without.outcome.ended_s


def test_free_guesses_are_chosen_by_what_they_bring() -> None:
    """With slow verification the engine takes fewer of them: here a row costs a fifth of a step."""
    times = StepTimes(fixed_s=0.02, decode_row_s=4e-3)
    free = {"method": "ngram", "num_speculative_tokens": 8}
    chosen = guessing((0.6,), free, output=3000, times=times).outcome
    all_of_them = guessing((0.6,), free | {"adaptive": False}, output=3000, times=times).outcome
    engines = chosen.deployments[0].engines
    assert engines.proposed / engines.verified < 4
    assert chosen.ended_s < all_of_them.ended_s


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_no_token_is_lost_or_doubled_whatever_happens(method: str) -> None:
    replica = modelled(
        kv_blocks=60, speculation=SpeculationModel(acceptance=(0.7, 0.5), pass_s=1e-3, row_s=1e-4), source="test"
    )
    settings = {"method": method} | ({} if method == "ngram" else {"model": "none"})
    model = {"replicas": 2, "engine": {"max_num_seqs": 6}, "speculation": settings | {"num_speculative_tokens": 5}}
    faults = [FaultConfig(kind="kill", at_s=4.0, replica=0), FaultConfig(kind="slow", at_s=2.0, replica=1)]
    played = scenario(model, faults, replica)
    traffic = requests([number / 4 for number in range(24)], prompt=100, output=120)
    first = Run(played, traffic)
    assert [each["tokens"] for each in first.named("answered")] == [120] * 24
    assert first.named("lost")
    assert first.outcome.deployments[0].engines.preemptions
    again = Run(played, traffic)
    assert again.outcome.log_sha256 == first.outcome.log_sha256
    stepped = Run(played.changed(["fast_forward=false"]), traffic)
    assert stepped.outcome.log_sha256 == first.outcome.log_sha256


def test_a_model_that_does_not_speculate_is_as_one_without_a_proposer() -> None:
    with_one = guessing((0.7,), {"method": "none"}, output=50)
    plain = modelled(step_times=StepTimes(fixed_s=0.02, decode_row_s=1e-3))
    without = Run(scenario({"speculation": ALWAYS}, replica=plain), requests([1.0], prompt=16, output=50))
    assert with_one.outcome.log_sha256 == without.outcome.log_sha256


@pytest.mark.parametrize("wrong", [{"acceptance": []}, {"acceptance": [1.2]}, {"acceptance": [0.5], "passes": 3}])
def test_speculation_that_cannot_be_is_explained(wrong: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError, match=r"replicas.m|modelled"):
        scenario().changed([f"replicas.m.speculation={wrong}"])
