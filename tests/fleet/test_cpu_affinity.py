from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvarn.fleet.placement import cpu_affinity as cpu_affinity
from kvarn.fleet.placement.cpu_affinity import CpuAffinity, separate_cpus
from kvarn.replica.server import cpu
from kvarn.replica.server.cpu import (
    MachineFiles,
    cpu_quota,
    kernel_threads,
    physical_cores,
    pin_to_cpus,
    usable_cores,
)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes the files of a machine whose processors have these siblings, and lets this process use all of them."""

    def make(siblings: list[str], own_cgroups: str = "0::/\n", name: str = "core_cpus_list") -> MachineFiles:
        files = MachineFiles(tmp_path / "cpu", tmp_path / "cgroup", tmp_path / "self")
        for number, text in enumerate(siblings):
            folder = files.cpus / f"cpu{number}" / "topology"
            folder.mkdir(parents=True)
            (folder / name).write_text(text + "\n")
        files.cgroups.mkdir()
        files.own_cgroups.write_text(own_cgroups)
        for module in (cpu, cpu_affinity):
            monkeypatch.setattr(module, "allowed_cpus", lambda: set(range(len(siblings))))
        return files

    return make


FOUR_CORES_OF_TWO = ["0,4", "1,5", "2,6", "3,7"] * 2


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_hyper_threads_of_one_core_count_once(machine, name):
    files = machine(["0-1", "0-1", "2-3", "2-3"], name=name)
    assert physical_cores(range(4), files) == [(0, 1), (2, 3)]
    assert usable_cores(files) == 2


def test_only_allowed_processors_count(machine):
    assert physical_cores({1, 2, 6}, machine(FOUR_CORES_OF_TWO)) == [(1,), (2, 6)]


def test_processors_whose_siblings_are_unknown_are_cores_of_their_own(machine):
    assert physical_cores(range(3), machine(["nonsense"] * 3)) == [(0,), (1,), (2,)]


@pytest.mark.parametrize(("limit", "expected"), [("50000 100000", 1), ("150000 100000", 2), ("max 100000", 4)])
def test_cores_are_cut_to_the_quota_of_the_container(machine, limit, expected):
    files = machine(FOUR_CORES_OF_TWO)
    (files.cgroups / "cpu.max").write_text(limit)
    assert usable_cores(files) == expected


def test_the_tightest_of_the_groups_around_the_process_counts(machine):
    files = machine(FOUR_CORES_OF_TWO, "0::/system.slice/kvarn.service\n")
    inner = files.cgroups / "system.slice" / "kvarn.service"
    inner.mkdir(parents=True)
    (inner / "cpu.max").write_text("300000 100000")
    (inner.parent / "cpu.max").write_text("200000 100000")
    assert cpu_quota(files) == 2.0


def test_quotas_of_version_1_are_read(machine):
    files = machine(FOUR_CORES_OF_TWO, "4:cpu,cpuacct:/docker/x\n2:memory:/docker/x\n")
    group = files.cgroups / "cpu" / "docker" / "x"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("150000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(files) == 1.5
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    assert cpu_quota(files) is None


@pytest.mark.parametrize(
    ("siblings", "max_threads", "gateways", "expected"),
    [
        (FOUR_CORES_OF_TWO, 0, 1, CpuAffinity(engines=(0, 1, 2), gateway=(3, 7, 4, 5, 6))),
        (FOUR_CORES_OF_TWO, 3, 1, CpuAffinity(engines=(0, 1, 2), gateway=(3, 7, 4, 5, 6))),
        (FOUR_CORES_OF_TWO, 4, 1, None),
        (FOUR_CORES_OF_TWO, 0, 2, None),
        ([str(number) for number in range(8)], 0, 2, CpuAffinity(engines=(0, 1, 2, 3, 4, 5), gateway=(6, 7))),
        (["0-1", "0-1", "2-3", "2-3"], 0, 1, None),
    ],
)
def test_each_gateway_process_gets_a_core_where_enough_are_left(machine, siblings, max_threads, gateways, expected):
    assert separate_cpus(max_threads, machine(siblings), gateways) == expected


def test_under_a_quota_nothing_is_tied_to_cores(machine):
    files = machine(FOUR_CORES_OF_TWO)
    (files.cgroups / "cpu.max").write_text("200000 100000")
    assert separate_cpus(files=files) is None


def test_a_tiny_model_gets_one_thread_and_a_larger_one_every_core(machine):
    files = machine(FOUR_CORES_OF_TWO)
    assert kernel_threads(10 * 1024**2, files) == 1
    assert kernel_threads(1024**3, files) == 4


def test_a_process_keeps_to_the_processors_it_is_given():
    before = os.sched_getaffinity(0)
    try:
        pin_to_cpus([min(before)])
        assert os.sched_getaffinity(0) == {min(before)}
        pin_to_cpus(())
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)
