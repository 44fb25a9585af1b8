"""torch, the compiled kernels and the GPUs."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Sequence
from dataclasses import dataclass

from kvarn.doctor.finding import Finding, error, good, warning
from kvarn.fleet.placement.gpus import MIN_CAPABILITY, Gpu


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """Properties of the installed torch. `sees_gpu`: whether it can use one."""

    version: str
    has_cuda: bool
    sees_gpu: bool
    has_triton: bool


def read_torch() -> TorchBuild | None:
    """The installed torch; None: it cannot be imported."""
    try:
        import torch
    except (ImportError, OSError):  # a library that it needs is missing
        return None
    has_triton = importlib.util.find_spec("triton") is not None
    return TorchBuild(torch.__version__, torch.version.cuda is not None, torch.cuda.is_available(), has_triton)


def check_torch(build: TorchBuild | None) -> Finding:
    if build is None:
        return error("torch", "torch cannot be imported", "pip install --force-reinstall torch shows why")
    return good("torch", f"{build.version}, a build for {'GPUs' if build.has_cuda else 'processors'}")


def check_kernels() -> Finding:
    """The compiled kernels of processors: whether they load, and the instruction set they run on."""
    from kvarn.kernels.dispatch import kernels_for
    from kvarn.kernels.errors import KernelError, MissingKernelsError

    try:
        return check_instruction_set(kernels_for("cpu").name, platform.machine())
    except MissingKernelsError as failure:
        detail, _, advice = str(failure).partition(". ")
        return warning("kernels", f"torch's, which are slower: {detail}", advice)
    except KernelError as failure:
        return error("kernels", str(failure))


def check_instruction_set(kernels: str, architecture: str) -> Finding:
    """`kernels`: the backend's name, such as `cpu (avx512)`. Processors other than x86-64 have one set."""
    if "emulated" in kernels:
        return warning("kernels", f"compiled, {kernels}: slow", "unset KVARN_ISA, which asks for it")
    if "generic" in kernels and architecture == "x86_64":
        return warning("kernels", f"compiled, {kernels}: slow", "use a processor with AVX2 where speed matters")
    return good("kernels", f"compiled, {kernels}")


def check_gpus(gpus: Sequence[Gpu], build: TorchBuild | None, wanted_by: Sequence[str]) -> Finding:
    """`wanted_by`: models whose `device` is `cuda`."""
    if not gpus and not (build and build.sees_gpu):
        if wanted_by:
            return error("GPUs", f"none, and {wanted_by[0]!r} wants one", "set models[].device to auto or cpu")
        return good("GPUs", "none: models run on the processors")
    listed = ", ".join(f"{each.memory_bytes / 1024**3:.0f} GiB" for each in gpus) or "found by torch"
    detail = f"{len(gpus) or 'some'} ({listed})"
    if build is None or not build.sees_gpu:
        why = "is a build for processors" if build and not build.has_cuda else "finds no driver for it"
        level = error if wanted_by else warning
        return level(
            "GPUs", f"{detail}, but torch {why}", "install torch's CUDA build and the driver: docs/start/gpu.md"
        )
    if not build.has_triton:
        return warning("GPUs", f"{detail}, but Triton is missing", "pip install 'kvarn[gpu]'")
    if gpus and gpus[0].capability < MIN_CAPABILITY:
        have, least = (".".join(map(str, each)) for each in (gpus[0].capability, MIN_CAPABILITY))
        return warning(
            "GPUs", f"{detail} of compute capability {have}", f"`device: auto` takes {least} and newer; cuda takes it"
        )
    return good("GPUs", detail)
