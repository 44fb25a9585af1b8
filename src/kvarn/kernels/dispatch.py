"""The backend of kernels that serves a device.

A model calls operations and never learns which backend runs them. The reference (torch) is complete and runs on every
device; each other backend is tested against it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import torch

from kvarn.kernels.backend import Kernels, torch_kernels
from kvarn.kernels.errors import (
    MissingDeviceError,
    MissingKernelsError,
    MissingTritonError,
    UnknownBackendError,
    UnsupportedByBackendError,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backend:
    make: Callable[[torch.device], Kernels]
    device_types: tuple[str, ...] | None = None
    """Those it computes on, as torch names them; None: all."""
    only_named: tuple[str, ...] = ()
    """More of them, where the backend is taken only by its name: it may refuse."""


def _compiled_kernels(device: torch.device) -> Kernels:
    try:
        from kvarn.kernels.cpu.backend import cpu_kernels  # needs the compiled module, which may not be installed
    except ImportError as error:
        raise MissingKernelsError(error) from error
    return cpu_kernels()


def _triton_kernels(device: torch.device) -> Kernels:
    try:
        from kvarn.kernels.triton.backend import triton_kernels  # needs Triton, which only GPUs need
    except ImportError as error:
        raise MissingTritonError(error) from error
    return triton_kernels(device)


BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {
        "cpu": Backend(_compiled_kernels, ("cpu",)),
        "triton": Backend(_triton_kernels, ("cuda",), only_named=("cpu",)),
        "torch": Backend(torch_kernels),
    }
)
"""Every backend by name, preferred ones first."""

MIN_CAPABILITY = (9, 0)
"""Compute capability of the GPUs that `auto` takes: H100 and later."""


def kernels_for(backend: str = "auto", device: torch.device | str | None = None) -> Kernels:
    """The kernels of a device: as torch names it, or `auto` for a GPU where there is one. Default: this machine's
    processors.

    `auto` takes the first backend that computes there. Where that is not installed, the next one is taken, with a
    warning.

    Raises:
        MissingDeviceError: A GPU is asked for, and there is none.
        UnknownBackendError: No such backend; the message lists the names there are.
        UnsupportedByBackendError: The named backend does not compute on that device.
        MissingKernelsError: The named backend is not installed.
    """
    chosen = _device(backend, device)
    usable = [name for name, each in BACKENDS.items() if each.device_types is None or chosen.type in each.device_types]
    if backend == "auto":
        return _first_installed(usable, chosen)
    if backend not in BACKENDS:
        raise UnknownBackendError(f"no kernel backend {backend!r}; there are: {', '.join(sorted(BACKENDS))}")
    if backend not in usable and chosen.type not in BACKENDS[backend].only_named:
        raise UnsupportedByBackendError(
            f"the {backend!r} kernels do not compute on {chosen}: set `kernels` to auto or to one of "
            f"{', '.join(usable)}"
        )
    return BACKENDS[backend].make(chosen)


def _device(backend: str, device: torch.device | str | None) -> torch.device:
    if device == "auto":
        computes = "cuda" in (BACKENDS.get(backend, Backend(torch_kernels)).device_types or ("cuda",))
        return torch.device("cuda" if computes and _has_known_gpu() else "cpu")
    chosen = torch.device("cpu") if device is None else torch.device(device)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise MissingDeviceError
    return chosen


def _has_known_gpu() -> bool:
    """Whether there is a GPU that `auto` takes: one of those that the kernels were made for."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= MIN_CAPABILITY


def _first_installed(usable: list[str], chosen: torch.device) -> Kernels:
    for name, following in pairwise(usable):
        try:
            return BACKENDS[name].make(chosen)
        except MissingKernelsError as error:
            _log.warning(f"serving with the {following} kernels, which are slower: {error}")
    return BACKENDS[usable[-1]].make(chosen)
