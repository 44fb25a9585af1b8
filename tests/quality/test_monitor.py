"""Real engines whose memory is corrupted, and the watch that finds them; healthy ones are never reported."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kvarn.kernels.cpu._native", reason="Kvarn was installed without its compiled kernels")

from conditions import until
from kvarn.kernels.cpu._native import usable_instruction_sets
from kvarn.quality.monitor import Drift, DriftAction
from kvarn.quality.probe import TENANT
from kvarn.quality.reference_file import ReferenceFileError
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from profiles import effort, thorough
from watched_fleet import Fleet

ADAPTERS = ({"name": "pirate", "path": str(files("kvarn").joinpath("assets/adapters/pirate"))},)

OFTEN = {"interval_s": 0.2, "max_share": 1.0}


async def test_a_flipped_bit_of_a_weight_is_found_by_the_next_probe(fleet: Fleet) -> None:
    await fleet.start("a", "b")
    watch = fleet.watch()
    assert await watch.probe(fleet, "a")
    assert await watch.probe(fleet, "b")
    await fleet.corrupt("b", kind="weight", seed=3, bit=6)
    assert not await watch.probe(fleet, "b")
    assert [(drift.replica, drift.action, drift.cached) for drift in fleet.drifts] == [
        ("b", DriftAction.RESTART, False)
    ]
    assert set(watch.drifted) == {"b"}
    assert await watch.probe(fleet, "a")


async def test_a_corrupted_block_of_the_prefix_cache_is_found(fleet: Fleet) -> None:
    await fleet.start("a")
    watch = fleet.watch()
    assert await watch.probe(fleet, "a")
    await fleet.corrupt("a", kind="kv", layer=1)
    assert not await watch.probe(fleet, "a")
    (drift,) = fleet.drifts
    assert drift.cached
    assert drift.detail.startswith("48 cached tokens")


async def test_a_corrupted_adapter_is_found_and_the_model_without_it_is_not_to_blame(fleet: Fleet) -> None:
    await fleet.start("a", "b", adapters=ADAPTERS)
    await until(lambda: all(client.adapters for client in fleet.replicas.values()))
    watch = fleet.watch()
    assert await watch.probe(fleet, "a")
    assert await watch.probe(fleet, "b")
    await fleet.corrupt("a", kind="adapter")
    assert not await watch.probe(fleet, "a")
    (drift,) = fleet.drifts
    assert (drift.replica, drift.adapter) == ("a", "pirate")


HEALTHY: list[Any] = [
    thorough({}),
    thorough({"dtype": "float32", "speculation": {"method": "none"}}),
    thorough({"quantization": "int8", "kv_cache_dtype": "int8"}),
    thorough({"quantization": "int4"}),
    thorough({"adapters": ADAPTERS}),
    thorough({"speculation": {"method": "draft_model", "model": "kvarn-demo-draft"}}),
    thorough({"engine": {"prefix_cache": False}}),
    {"kv_cache_gib": 0.002, "engine": {"max_num_seqs": 16, "token_budget": 64}, "max_context_length": 512},
]


@pytest.mark.parametrize("model", HEALTHY, ids=str)
async def test_healthy_replicas_are_never_reported_whatever_they_do_beside(fleet: Fleet, model: dict[str, Any]) -> None:
    """Two replicas under different load: batch mates of all lengths, aborted ones, a cache too small for all."""
    await fleet.start("a", "b", **model)
    watch = fleet.watch()
    ended = asyncio.Event()
    load = asyncio.gather(*(_load(fleet, name, number, ended) for name in ("a", "b") for number in range(8)))
    for _ in range(effort(1, 60)):
        assert await watch.probe(fleet, "a")
        assert await watch.probe(fleet, "b")
    ended.set()
    await load
    assert not fleet.drifts
    if "kv_cache_gib" in model:
        assert fleet.replicas["a"].stats.preemptions_total > 0
    stats = fleet.replicas["b"].stats
    assert stats.tenant_tokens_total.get(TENANT, 0) > 0


async def _load(fleet: Fleet, name: str, number: int, ended: asyncio.Event) -> None:
    turn = 0
    while not ended.is_set():
        turn += 1
        length = (number * 53 + turn * 31) % 200 + 1
        request = Submit(
            request_id=f"{name}-{number}-{turn}",
            prompt_token_ids=[(length * 7 + place * number) % 4000 for place in range(length)],
            sampling=SamplingParams(seed=turn, max_tokens=40, temperature=float(turn % 2)),
        )
        stream = fleet.replicas[name].generate(request)
        async for delta in stream:
            if turn % 5 == 0 and delta.token_ids:
                break
        await stream.aclose()


@pytest.mark.thorough
async def test_other_kernels_and_types_are_near_and_a_badly_corrupted_one_is_not(fleet: Fleet) -> None:
    slowest = usable_instruction_sets()[-1]
    await fleet.start("best", dtype="bfloat16")
    await fleet.start("other", dtype="float32", environment={"KVARN_ISA": slowest})
    await fleet.start("int8", quantization="int8")
    fleet.fault_at_start("bad", kind="weight", seed=0, bit=14)
    await fleet.start("bad", dtype="bfloat16", environment={"KVARN_ISA": slowest})
    watch = fleet.watch(prompts=8)
    for name in ("best", "other", "int8"):
        assert await watch.probe(fleet, name)
    assert not await watch.probe(fleet, "bad")
    assert {drift.replica for drift in fleet.drifts} == {"bad"}


async def test_the_watch_restarts_a_replica_once_and_keeps_it_out_when_it_deviates_again(fleet: Fleet) -> None:
    """The whole loop: a weight that is corrupted while it runs, then one that is corrupted at each start."""
    await fleet.start("a", "b", "c")

    async def take_out(drift: Drift) -> None:
        supervisor = fleet.supervisors[drift.replica]
        await (supervisor.restart(0) if drift.action is DriftAction.RESTART else supervisor.drain(0))

    watch = fleet.watch(take_out, **OFTEN)
    watch.start()
    try:
        await until(lambda: len(watch.counts.passed_at) == 3)
        fault = fleet.fault_at_start("b", kind="weight", seed=1, bit=6)
        await fleet.corrupt("b", kind="weight", seed=1, bit=6)
        await until(lambda: len(fleet.drifts) == 2)
        assert [(drift.replica, drift.action) for drift in fleet.drifts] == [
            ("b", DriftAction.RESTART),
            ("b", DriftAction.KEEP_OUT),
        ]
        assert set(watch.drifted) == {"b"}
        fault.unlink()
        await until(lambda: fleet.replicas["b"].state == "down")
    finally:
        await watch.stop()


@pytest.mark.thorough
async def test_a_restarted_replica_that_answers_as_expected_is_no_longer_reported(fleet: Fleet) -> None:
    await fleet.start("a")

    watch = fleet.watch(lambda drift: fleet.supervisors[drift.replica].restart(0), **OFTEN)
    watch.start()
    try:
        await until(lambda: len(watch.counts.passed_at) == 1)
        await fleet.corrupt("a", kind="weight", seed=2, bit=6)
        await until(lambda: len(fleet.drifts) == 1)
        await until(lambda: not watch.drifted)
        assert fleet.replicas["a"].starts == 2
    finally:
        await watch.stop()


async def test_a_file_of_expected_answers_finds_what_was_corrupted_before_the_start(fleet: Fleet) -> None:
    file = fleet.folder / "expected.json"
    await fleet.start("a")
    watch = fleet.watch(interval_s=600, reference_file=str(file))
    watch.start()
    await until(lambda: watch.counts.passed_at)
    await watch.stop()
    fleet.fault_at_start("b", kind="weight", seed=4, bit=6)
    await fleet.start("b")
    del fleet.replicas["a"]
    assert not await fleet.watch(reference_file=str(file)).probe(fleet, "b")


def test_a_file_that_holds_something_else_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_text("{}")
    with pytest.raises(ReferenceFileError, match="reference_file"):
        fleet.watch(reference_file=str(path))
