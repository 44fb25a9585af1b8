"""Errors of choosing and calling kernels."""

from __future__ import annotations

import importlib.util
import shutil

import torch

_COMPILERS = ("g++", "c++", "clang++")


class KernelError(ValueError):
    """Base of this package's errors."""


class KernelInputError(KernelError):
    """A tensor, weight or batch that a kernel cannot take; the message says what it needs."""


class UnknownBackendError(KernelError):
    """No backend of that name."""


class UnsupportedByBackendError(KernelError):
    """The chosen backend cannot do what the configuration asks for; the message says which can."""


class MissingDeviceError(KernelError):
    def __init__(self) -> None:
        why = "there is none, or its driver is missing" if torch.version.cuda else "it is a build for processors"
        super().__init__(
            f"no GPU that torch {torch.__version__} can use: {why}. Set `device` to auto or cpu, or install torch's "
            "CUDA build (`make serve DEVICE=cuda`, or pip: docs/start/gpu.md) and the driver"
        )


class MissingKernelsError(KernelError):
    """The compiled kernels were not built, or cannot be loaded; the message says why, and how to get them."""

    def __init__(self, failure: ImportError) -> None:
        compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
        if importlib.util.find_spec("kvarn.kernels.cpu._native") is not None:
            why = f"are there, but cannot be loaded ({failure})"
        elif compiler is None:
            why = "were not built when Kvarn was installed: there is no C++ compiler; install g++"
        else:
            why = f"were not built when Kvarn was installed: the build failed, or {compiler} was not there yet"
        super().__init__(
            f"the compiled kernels {why}. To build them run `make native` in a checkout, or install Kvarn again as you "
            "did, with `pip install -v --force-reinstall --no-deps`: both show what fails"
        )


class MissingTritonError(MissingKernelsError):
    def __init__(self, failure: ImportError) -> None:
        KernelError.__init__(self, f"Triton cannot be loaded ({failure}): install it with `pip install kvarn[gpu]`")


class Fp8WeightsError(UnsupportedByBackendError):
    """The compiled kernels multiply no fp8 weights."""

    def __init__(self) -> None:
        super().__init__("fp8 weights need the kernels of GPUs: set `device` to cuda, or `quantization` to int8")
