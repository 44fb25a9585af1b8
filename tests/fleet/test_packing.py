"""Where there is room for a replica, against brute force; and what one needs, against real checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.config.fleet import HardwareConfig
from kvarn.config.schema import ModelConfig
from kvarn.fleet.launcher import LaunchError, LocalLauncher
from kvarn.fleet.packing import GIB, PROCESS_BYTES, Device, Needs, needs_of, place, weight_bytes
from kvarn.replica.spec import ReplicaSpec
from kvarn.text.checkpoint import resolve_checkpoint

needs = st.builds(Needs, st.integers(0, 20), st.integers(0, 4).map(float))
devices = st.lists(st.integers(0, 20), min_size=1, max_size=4).map(
    lambda sizes: [Device(f"d{number}", size, cpus=4.0) for number, size in enumerate(sizes)]
)


@given(needs, devices, st.dictionaries(st.sampled_from(["d0", "d1", "d2"]), st.lists(needs, max_size=3)))
def test_a_replica_goes_where_the_least_is_left_and_nowhere_only_if_it_fits_nowhere(
    wanted: Needs, machine: list[Device], used: dict[str, list[Needs]]
) -> None:
    def after(device: Device) -> tuple[float, float]:
        on_it = [*used.get(device.name, []), wanted]
        return (
            device.memory_bytes - sum(each.memory_bytes for each in on_it),
            device.cpus - sum(each.cpus for each in on_it),
        )

    fitting = [device for device in machine if min(after(device)) >= 0]
    chosen = place(wanted, machine, used)
    if chosen is None:
        assert fitting == []
    else:
        assert chosen in fitting
        assert after(chosen)[0] == min(after(device)[0] for device in fitting)


@given(st.lists(needs, max_size=10), devices)
def test_replicas_placed_one_after_another_never_pass_what_a_device_has(
    arriving: list[Needs], machine: list[Device]
) -> None:
    used: dict[str, list[Needs]] = {}
    for each in arriving:
        chosen = place(each, machine, used)
        if chosen is not None:
            used.setdefault(chosen.name, []).append(each)
    for device in machine:
        assert sum(each.memory_bytes for each in used.get(device.name, [])) <= device.memory_bytes
        assert sum(each.cpus for each in used.get(device.name, [])) <= device.cpus


def test_a_replica_keeps_its_place_through_restarts_until_it_is_gone_for_good() -> None:
    launcher = LocalLauncher([Device("cpu", 64 * GIB, cpus=8.0)], lambda spec: Needs(GIB, 8.0))
    first, second, third = (ReplicaSpec(model="{}", directory="", replica=name) for name in ("1", "2", "3"))
    for running in (first, second):
        launcher.occupy(running, anyway=True)
    launcher.occupy(first)
    launcher.vacate("1")
    for other in (first, third):
        with pytest.raises(LaunchError, match="no room"):
            launcher.occupy(other)
    launcher.vacate("2")
    launcher.occupy(third)


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
