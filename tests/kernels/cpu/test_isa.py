"""Which instruction sets there are, and which one is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("kvarn.kernels.cpu._native", reason="no compiled kernels in this installation")

from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu._native import emulated_instruction_sets, usable_instruction_sets
from kvarn.kernels.cpu.isa import UnusableInstructionSetError, chosen_instruction_set

ALL = ["amx", "avx512_bf16", "avx512", "avx2", "generic"]
FLAGS = {
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
    "avx512_bf16": {"avx512_bf16"},
    "amx": {"amx_tile", "amx_bf16", "amx_int8"},
}


def test_usable_sets_come_best_first_and_end_with_the_one_every_machine_has() -> None:
    usable = usable_instruction_sets()
    assert usable == [name for name in ALL if name in usable]
    assert usable[-1] == "generic"


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="no list of the processor's features to compare with")
def test_usable_sets_are_those_whose_features_linux_lists() -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    features = set(next((line for line in lines if line.startswith("flags")), "").split())
    needed: set[str] = set()
    want = ["generic"]
    for name in reversed(ALL[:-1]):
        needed |= FLAGS[name]
        if needed <= features:
            want.insert(0, name)
    assert usable_instruction_sets() == want


def test_the_best_set_is_taken_unless_the_environment_names_another() -> None:
    assert chosen_instruction_set({}) == usable_instruction_sets()[0]
    assert chosen_instruction_set({"KVARN_ISA": ""}) == usable_instruction_sets()[0]
    assert chosen_instruction_set({"KVARN_ISA": "generic"}) == "generic"


def test_an_emulated_set_is_taken_only_when_named() -> None:
    for name in emulated_instruction_sets():
        assert name not in usable_instruction_sets()
        assert chosen_instruction_set({"KVARN_ISA": name}) == name


@pytest.mark.parametrize("name", ["sse9", "AVX2", "amx avx2"])
def test_an_unusable_set_is_refused_with_those_that_can_be_named(name: str) -> None:
    with pytest.raises(UnusableInstructionSetError, match=f"KVARN_ISA={name}.*generic"):
        chosen_instruction_set({"KVARN_ISA": name})
    with pytest.raises(ValueError, match=f"'{name}' here; usable:.* generic"):
        _native.Backend(name)
