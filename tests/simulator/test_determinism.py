"""The same inputs give the same events, to the byte, and every request ends once."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.costs.replica_model import Distribution
from kvarn.simulator import Scenario, simulate
from kvarn.simulator.scenario import TrafficConfig, scenario_of
from kvarn.simulator.simulation import Simulation
from kvarn.simulator.traffic import conversations
from simulated_fleet import Run, modelled

EVERYTHING: dict[str, Any] = {
    "config": {
        "models": [
            {"name": "chat", "path": "none", "replicas": 3, "load_shedding": True, "engine": {"max_num_seqs": 8}},
            {"name": "code", "path": "none", "autoscale": {"min_replicas": 1, "max_replicas": 3, "start_s": 5}},
            {"name": "agent", "path": "none", "replicas": 2, "engine": {"token_budget": 256}},
        ],
        "slo": {"ttft_target_s": 0.5, "tpot_target_s": 0.1},
    },
    "replicas": {},
    "traffic": [
        {"model": "chat", "rate": 12, "prompt_tokens": [16, 900], "output_tokens": [1, 60], "tenants": 3},
        {"model": "code", "rate": 3, "pattern": "gamma:3", "shared_prefix_tokens": 200},
        {"model": "agent", "preset": "mooncake", "rate": 1, "max_requests": 4},
        {"model": "agent", "rate": 1, "priority": 10, "output_tokens": [5, 20]},
    ],
    "faults": [
        {"kind": "kill", "model": "chat", "at_s": 2},
        {"kind": "slow", "model": "agent", "per_hour": 600, "lasts_s": 3},
    ],
    "duration_s": 4,
    "client_timeout_s": 6,
}
REPLICA = modelled(
    kv_blocks=1500,
    max_context_length=1 << 16,
    overhead_s=Distribution((1e-4, 3e-4, 2e-2)),
    answer_s=Distribution((1e-3, 5e-3)),
    start_s=Distribution((1.0, 3.0)),
)


def everything(**changes: Any) -> Scenario:
    raw = EVERYTHING | {"replicas": dict.fromkeys(("chat", "code", "agent"), REPLICA)} | changes
    return scenario_of(raw, Path.cwd(), "test")


def test_the_log_is_the_same_in_other_processes_with_other_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = simulate(everything(), log=tmp_path / "here")
    monkeypatch.setenv("PYTHONHASHSEED", "77")
    there = simulate(everything(), log=tmp_path / "there", jobs=2)
    assert there.log_sha256 == here.log_sha256
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()
    expected = {"refused", "answered", "left", "queued", "lost", "scaled", "fault"}
    assert not expected - set(kinds_of((tmp_path / "here").read_bytes()))


def test_everything_comes_out_the_same_step_by_step() -> None:
    short = {"duration_s": 4}
    stepped = simulate(everything(**short, fast_forward=False))
    assert simulate(everything(**short)).log_sha256 == stepped.log_sha256


def test_another_seed_gives_another_log() -> None:
    short = {"duration_s": 2}
    assert simulate(everything(**short)).log_sha256 != simulate(everything(seed=1, **short)).log_sha256


def test_a_run_of_every_feature_reads_no_clock_and_no_chance_of_the_machine() -> None:
    """Looks at every call of a built-in function, however it was reached."""
    forbidden = {
        getattr(time, name)
        for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep")
    }
    forbidden.add(os.urandom)
    shared_chance = random.random.__self__  # that of the module's own functions
    found: list[str] = []

    def look(frame: Any, event: str, argument: Any) -> None:
        if event == "c_call" and (argument in forbidden or getattr(argument, "__self__", None) is shared_chance):
            found.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")

    scenario = everything(duration_s=3, drain_s=20)
    callbacks = gc.callbacks[:]  # Hypothesis times collections
    gc.callbacks.clear()
    sys.setprofile(look)
    try:
        simulate(scenario)
    finally:
        sys.setprofile(None)
        gc.callbacks.extend(callbacks)
    outside = [each for each in found if "kvarn/clock/__init__.py" not in each]
    assert not outside
    assert len(found) == 2, "simulate() itself looks when it begins and ends"


@settings(max_examples=8, deadline=None)
@given(
    replicas=st.integers(1, 3),
    kv_blocks=st.integers(24, 200),
    slots=st.integers(1, 12),
    rate=st.sampled_from([0.5, 4.0, 20.0]),
    shedding=st.booleans(),
    policy=st.sampled_from(["prefix", "least_load", "random"]),
    patience=st.sampled_from([None, 1.0, 5.0]),
    kill=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_request_ends_exactly_once_and_fast_forward_equals_stepping(
    *,
    replicas: int,
    kv_blocks: int,
    slots: int,
    rate: float,
    shedding: bool,
    policy: str,
    patience: float | None,
    kill: bool,
    seed: int,
) -> None:
    raw = {
        "config": {
            "models": [
                {
                    "name": "m",
                    "path": "none",
                    "replicas": replicas,
                    "load_shedding": shedding,
                    "routing": {"policy": policy},
                    "engine": {"max_num_seqs": slots, "max_waiting_requests": 10},
                }
            ],
            "admission": {"max_queue": 5},
        },
        "replicas": {"m": modelled(kv_blocks=kv_blocks, start_s=Distribution((0.5,)))},
        "faults": [{"kind": "kill", "at_s": 1.5}] if kill else [],
        "duration_s": 4,
        "client_timeout_s": patience,
        "seed": seed,
    }
    scenario = scenario_of(raw, Path.cwd(), "test")
    lengths = TrafficConfig(
        rate=rate, prompt_tokens=(1, 400), output_tokens=(1, 40), shared_prefix_tokens=20, tenants=2
    )
    first, second = (Run(scenario, list(conversations(lengths, "t", 4.0))) for _ in range(2))
    assert first.outcome.log_sha256 == second.outcome.log_sha256
    arrived = [each["request"] for each in first.named("arrived")]
    ended = Counter(each["request"] for each in first.events if each["event"] in ENDS)
    assert sorted(arrived) == sorted(ended)
    assert set(ended.values()) <= {1}
    assert len(first.outcome.requests) == len(arrived)
    asked = {each["request"]: each["output"] for each in first.named("arrived")}
    assert all(each["tokens"] == asked[each["request"]] for each in first.named("answered"))


ENDS = ("answered", "refused", "failed", "left")


def kinds_of(log: bytes) -> Counter[str]:
    return Counter(msgspec.json.decode(line)["event"] for line in log.splitlines())


def test_the_hash_is_that_of_the_file(tmp_path: Path) -> None:
    scenario = everything(duration_s=1).changed(["fleet.warm_pool=1"])
    outcome = simulate(scenario, log=tmp_path / "log")
    assert hashlib.sha256((tmp_path / "log").read_bytes()).hexdigest() == outcome.log_sha256


def test_what_a_simulation_leaves_is_freed_when_it_is_over() -> None:
    scenario = everything(duration_s=1, drain_s=20)
    gc.collect()
    gc.disable()
    try:
        simulate(scenario)
        assert not any(isinstance(each, Simulation) for each in gc.get_objects())
    finally:
        gc.enable()
