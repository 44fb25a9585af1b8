from __future__ import annotations

import pytest

from kvarn.doctor.devices import TorchBuild, check_gpus, check_instruction_set, check_kernels, check_torch, read_torch
from kvarn.doctor.finding import Level
from kvarn.fleet.placement.gpus import Gpu

H100 = (Gpu(0, "GPU-1", 80 * 1024**3),)
OLD = (Gpu(0, "GPU-1", 16 * 1024**3, (7, 5)),)
CPU_BUILD = TorchBuild("2.13.0+cpu", has_cuda=False, sees_gpu=False, has_triton=False)
CUDA_BUILD = TorchBuild("2.13.0", has_cuda=True, sees_gpu=True, has_triton=True)
NO_DRIVER = TorchBuild("2.13.0", has_cuda=True, sees_gpu=False, has_triton=True)
NO_TRITON = TorchBuild("2.13.0", has_cuda=True, sees_gpu=True, has_triton=False)


@pytest.mark.parametrize(
    ("gpus", "build", "wanted_by", "level", "says"),
    [
        ((), CPU_BUILD, (), Level.OK, "none"),
        ((), CPU_BUILD, ("chat",), Level.ERROR, "'chat' wants one"),
        (H100, CPU_BUILD, (), Level.WARNING, "build for processors"),
        (H100, CPU_BUILD, ("chat",), Level.ERROR, "build for processors"),
        (H100, None, (), Level.WARNING, "no driver"),
        (H100, NO_DRIVER, (), Level.WARNING, "no driver"),
        (H100, NO_TRITON, (), Level.WARNING, "Triton is missing"),
        (H100, CUDA_BUILD, ("chat",), Level.OK, "80 GiB"),
        (OLD, CUDA_BUILD, (), Level.WARNING, "7.5"),
        ((), CUDA_BUILD, (), Level.OK, "found by torch"),
    ],
)
def test_gpus_are_usable_where_torch_the_driver_and_triton_are_there(gpus, build, wanted_by, level, says):
    found = check_gpus(gpus, build, wanted_by)
    assert found.level is level and says in found.detail


@pytest.mark.parametrize(
    ("kernels", "architecture", "level"),
    [
        ("cpu (avx512)", "x86_64", Level.OK),
        ("cpu (generic)", "x86_64", Level.WARNING),
        ("cpu (emulated_amx)", "x86_64", Level.WARNING),
        ("cpu (generic)", "aarch64", Level.OK),
    ],
)
def test_slow_instruction_sets_are_warned_of(kernels, architecture, level):
    found = check_instruction_set(kernels, architecture)
    assert found.level is level and kernels in found.detail


def test_kernels_are_those_that_the_server_would_take(monkeypatch):
    pytest.importorskip("kvarn.kernels.cpu._native")
    monkeypatch.setenv("KVARN_ISA", "generic")
    assert "cpu (generic)" in check_kernels().detail
    monkeypatch.setenv("KVARN_ISA", "evil")
    found = check_kernels()
    assert found.level is Level.ERROR and "KVARN_ISA=evil" in found.detail


def test_torch_is_named_with_its_build():
    assert check_torch(None).level is Level.ERROR
    assert check_torch(read_torch()).level is Level.OK
    assert "for GPUs" in check_torch(CUDA_BUILD).detail and "for processors" in check_torch(CPU_BUILD).detail
