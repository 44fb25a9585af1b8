"""Where there is room for a replica, on processors and GPUs, against brute force; and what one needs, against real
checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.config.fleet import HardwareConfig
from kvarn.config.model import ModelConfig
from kvarn.fleet.placement.gpus import MIN_CAPABILITY, Gpu, find_gpus, ranks_on_gpus
from kvarn.fleet.placement.packing import (
    GIB,
    GPU_PROCESS_BYTES,
    PROCESS_BYTES,
    Machine,
    Needs,
    Placement,
    needs_of,
    place,
    weight_bytes,
)
from kvarn.fleet.placement.places import LaunchError, Places
from kvarn.kernels import dispatch
from kvarn.replica.server.ranks.parts import layout_of
from kvarn.replica.spec import ReplicaSpec
from kvarn.text.checkpoint import resolve_checkpoint

needs = st.builds(Needs, st.integers(0, 20), st.integers(0, 4).map(float))
machines = st.lists(st.integers(0, 20), min_size=1, max_size=4).map(
    lambda sizes: [Machine(f"d{number}", size, cpus=4.0) for number, size in enumerate(sizes)]
)


placements = st.lists(st.builds(Placement, st.sampled_from(["d0", "d1", "d2"]), needs), max_size=9)


@given(needs, machines, placements)
def test_a_replica_goes_where_the_least_is_left_and_nowhere_only_if_it_fits_nowhere(
    wanted: Needs, machines: list[Machine], placed: list[Placement]
) -> None:
    def after(machine: Machine) -> tuple[float, float]:
        on_it = [*(each.needs for each in placed if each.machine == machine.name), wanted]
        return (
            machine.memory_bytes - sum(each.memory_bytes for each in on_it),
            machine.cpus - sum(each.cpus for each in on_it),
        )

    fitting = [machine for machine in machines if min(after(machine)) >= 0]
    chosen = place(wanted, machines, placed)
    if chosen is None:
        assert fitting == []
    else:
        (machine,) = (each for each in fitting if each.name == chosen.machine)
        assert after(machine)[0] == min(after(each)[0] for each in fitting)


@given(st.lists(needs, max_size=10), machines)
def test_replicas_placed_one_after_another_never_pass_what_a_device_has(
    arriving: list[Needs], machines: list[Machine]
) -> None:
    placed: list[Placement] = []
    for each in arriving:
        chosen = place(each, machines, placed)
        if chosen is not None:
            placed.append(chosen)
    for machine in machines:
        on_it = [each.needs for each in placed if each.machine == machine.name]
        assert sum(each.memory_bytes for each in on_it) <= machine.memory_bytes
        assert sum(each.cpus for each in on_it) <= machine.cpus


GPUS = tuple(Gpu(number, f"GPU-{number}", 80 * GIB) for number in range(3))
gpu_needs = st.builds(Needs, st.just(0), st.just(0.0), st.integers(1, 3), st.integers(1, 10).map(lambda n: n / 10))


@given(st.lists(gpu_needs, max_size=12))
def test_replicas_fill_gpus_up_to_the_last_tenth_and_never_share_more_than_there_is(arriving: list[Needs]) -> None:
    machine, placed = Machine("cpu", 0, gpus=GPUS), list[Placement]()
    for each in arriving:
        tenths = {
            gpu.uuid: 10 - sum(round(10 * p.needs.gpu_share) for p in placed if gpu.uuid in p.gpus) for gpu in GPUS
        }
        chosen = place(each, [machine], placed)
        fitting = [uuid for uuid, free in tenths.items() if free >= round(10 * each.gpu_share)]
        assert (chosen is None) == (len(fitting) < each.gpus)
        if chosen is not None:
            assert len(set(chosen.gpus)) == each.gpus and set(chosen.gpus) <= set(fitting)
            assert sum(tenths[uuid] for uuid in chosen.gpus) == sum(
                sorted(tenths[uuid] for uuid in fitting)[: each.gpus]
            )
            placed.append(chosen)


def test_each_replica_runs_on_the_gpus_of_its_place(tmp_path: Path) -> None:
    places = Places([Machine("cpu", 64 * GIB, gpus=GPUS[:2])], lambda spec: Needs(GIB, gpus=1, gpu_share=0.5))
    specs = [ReplicaSpec(model="{}", directory="", replica=str(number)) for number in range(6)]
    assert [places.occupy(spec).gpus for spec in specs[:4]] == [("GPU-0",), ("GPU-0",), ("GPU-1",), ("GPU-1",)]
    with pytest.raises(LaunchError, match=r"50% of each of 1 GPUs .*, 0% of GPU 0, 0% of GPU 1 are free"):
        places.occupy(specs[4])
    assert places.lacks_room(specs[4], 1).startswith("this machine has room for 0 of them")
    assert places.occupy(specs[2]).gpus == ("GPU-1",), "it keeps its place when it is started again"
    assert places.occupy(specs[5], anyway=True).gpus == ("GPU-0",)
    places.vacate("2")
    assert places.occupy(specs[4]).gpus == ("GPU-1",)


@given(st.lists(st.tuples(st.sampled_from(GPUS), gpu_needs, st.booleans()), max_size=9), gpu_needs)
def test_a_replica_keeps_nobody_asleep_where_another_gpu_has_room(
    there: list[tuple[Gpu, Needs, bool]], wanted: Needs
) -> None:
    placed = [Placement("cpu", needs, (gpu.uuid,), asleep=asleep) for gpu, needs, asleep in there]

    def tenths(gpu: Gpu, *, all_wake: bool) -> int:
        return 10 - sum(round(10 * n.gpu_share) for on, n, asleep in there if on == gpu and (all_wake or not asleep))

    need = round(10 * wanted.gpu_share)
    fitting = {gpu.uuid for gpu in GPUS if tenths(gpu, all_wake=False) >= need}
    harmless = {gpu.uuid for gpu in GPUS if tenths(gpu, all_wake=True) >= need}
    chosen = place(wanted, [Machine("cpu", 0, gpus=GPUS)], placed)
    assert (chosen is None) == (len(fitting) < wanted.gpus)
    if chosen is not None:
        assert set(chosen.gpus) <= fitting
        assert len(harmless & set(chosen.gpus)) == min(len(harmless), wanted.gpus)


def test_one_that_is_asleep_wakes_on_its_gpu_or_is_started_anew_where_there_is_room() -> None:
    needs = Needs(GIB, gpus=1, gpu_share=0.9, weight_bytes=2 * GIB)
    places = Places([Machine("cpu", 5 * GIB, gpus=GPUS[:2])], lambda spec: needs)
    first, second, third = (ReplicaSpec(model="{}", directory="", replica=name) for name in ("1", "2", "3"))
    assert places.occupy(first).gpus == ("GPU-0",)
    assert places.wake("1"), "it has its place"
    places.sleep("1")
    assert places.occupy(second).gpus == ("GPU-1",), "the first can wake"
    assert places.occupy(third).gpus == ("GPU-0",)
    with pytest.raises(
        LaunchError, match=r"it waits for its GPU: .*90% of each of 1 GPUs .* 10% of GPU 0, 10% of GPU 1"
    ):
        places.wake("1")
    places.sleep("2")
    assert not places.wake("1"), "there is room beside the second, which is asleep"
    places.vacate("3")
    assert places.wake("1")
    assert "0.0 GiB" in places.lacks_room(third, 2), "weights of one that is asleep are in main memory"


def nvidia_smi(folder: Path, answer: str) -> None:
    """The driver's command, as it answers on some machine."""
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    command.chmod(0o755)


def test_gpus_are_those_that_the_driver_names_and_the_environment_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_smi(tmp_path, "0, GPU-aa, 81559, 9.0\n1, GPU-ab, 143771, 9.0\n2, GPU-b, 24576, 8.6")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    every = find_gpus()
    assert every[1] == Gpu(1, "GPU-ab", 143771 * 2**20, (9, 0)) and len(every) == 3
    for visible, numbers in (("2,0", [2, 0]), ("GPU-ab", [1]), ("1,MIG-7,0", [1]), ("", []), ("-1", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert [gpu.number for gpu in find_gpus()] == numbers
    nvidia_smi(tmp_path, "NVIDIA-SMI has failed")
    assert find_gpus() == ()


def test_a_replica_takes_a_gpu_for_each_rank_where_its_model_computes_on_gpus() -> None:
    model = ModelConfig(name="m", path="p", device="cuda", tensor_parallel_size=2, pipeline_parallel_size=2)
    assert ranks_on_gpus(model, GPUS) == ranks_on_gpus(model, ()) == 4
    sharing_prompts = model.model_copy(update={"prefill_context_parallel_size": 3})
    assert ranks_on_gpus(sharing_prompts, GPUS) == layout_of(sharing_prompts).world_size == 12
    assert ranks_on_gpus(model.model_copy(update={"device": "cpu"}), GPUS) == 0
    automatic = model.model_copy(update={"device": "auto"})
    assert ranks_on_gpus(automatic, ()) == ranks_on_gpus(automatic, [Gpu(0, "GPU-0", GIB, (8, 6))]) == 0
    assert MIN_CAPABILITY == dispatch.MIN_CAPABILITY
    needs = needs_of(model, Path("/nowhere"), 64 * GIB, gpus=4)
    assert needs == Needs(4 * GPU_PROCESS_BYTES, 0.0, 4, 0.9)


def test_a_replica_keeps_its_place_through_restarts_until_it_is_gone_for_good() -> None:
    places = Places([Machine("cpu", 64 * GIB, cpus=8.0)], lambda spec: Needs(GIB, 8.0))
    first, second, third = (ReplicaSpec(model="{}", directory="", replica=name) for name in ("1", "2", "3"))
    for running in (first, second):
        places.occupy(running, anyway=True)
    places.occupy(first)
    places.vacate("1")
    for other in (first, third):
        with pytest.raises(LaunchError, match="no room"):
            places.occupy(other)
    places.vacate("2")
    places.occupy(third)


def test_what_a_replica_needs_is_its_weights_its_cache_and_its_process() -> None:
    directory = resolve_checkpoint("kvarn-demo")
    size = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    model = ModelConfig(name="m", path="kvarn-demo", kv_cache_gib=1.0, threads=2)
    assert weight_bytes(model, directory) == pytest.approx(size, rel=0.01)
    assert needs_of(model, directory, 64 * GIB) == Needs(weight_bytes(model, directory) + GIB + PROCESS_BYTES, 2.0)
    int4 = model.model_copy(update={"quantization": "int4"})
    assert weight_bytes(int4, directory) == pytest.approx(size * 4.5 / 16, rel=0.01)
    given_size = model.model_copy(update={"hardware": HardwareConfig(memory_gib=3, cpus=1)})
    assert needs_of(given_size, Path("/nowhere"), 64 * GIB) == Needs(3 * GIB, 1.0)


@pytest.mark.parametrize("content", ["[]", "{", '{"a":' * 100_000 + "1" + "}" * 100_000], ids=range(3))
def test_a_configuration_that_cannot_be_read_is_the_engines_to_tell_of(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert weight_bytes(ModelConfig(name="m", path=str(tmp_path), dtype="bfloat16"), tmp_path) == 1000
