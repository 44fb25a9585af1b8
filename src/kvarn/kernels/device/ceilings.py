"""Bytes that this machine reads and operations that it computes in a second at most. Measured, never looked up."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from kvarn.kernels.cpu._native import Backend

Arithmetic = Literal["float", "int8"]
"""Operands of a multiply-add: floats (also for bfloat16 weights), or bytes summed in 32 bits."""

_READ_BYTES = 512 * 1024**2
"""More than the last cache of any machine this is meant for."""
_REPEATS = 7
_AT_LEAST_S = 0.5
"""Seconds that a ceiling is measured for: it takes a while until the system has moved each thread to a core of its own.
Half the rate of two cores was seen where 7 repeats were over before."""
_MATRIX = 1536
"""Rows of the square product that stands for the peak where nothing is compiled."""


def read_bytes_per_s() -> float:
    """Bytes read from memory in a second by all of torch's threads: the best of a few passes over half a GiB."""
    if not is_compiled():
        words = torch.ones(_READ_BYTES // 8, dtype=torch.int64)
        return _best(lambda: (float(words.nbytes), words.sum())[0])
    from kvarn.kernels.device.memory import zeros_on_demand

    native, memory = _native(), zeros_on_demand((_READ_BYTES,), torch.uint8).fill_(1)  # in huge pages, as weights are
    return _best(lambda: native.read_all(memory.data_ptr(), memory.nbytes)[0])


def operations_per_s(arithmetic: Arithmetic) -> float:
    """Operations in a second (a multiply-add counts as two) of all of torch's threads, from registers."""
    if not is_compiled():
        square = torch.ones(_MATRIX, _MATRIX)
        return _best(lambda: (2.0 * _MATRIX**3, square @ square)[0])
    native = _native()
    multiply = native.multiply_floats if arithmetic == "float" else native.multiply_bytes
    return _best(lambda: multiply(256, 20_000)[0])


def is_compiled() -> bool:
    return importlib.util.find_spec("kvarn.kernels.cpu._native") is not None


def _native() -> Backend:
    from kvarn.kernels.cpu._native import Backend
    from kvarn.kernels.cpu.isa import chosen_instruction_set

    return Backend(chosen_instruction_set(os.environ))


def _best(work: Callable[[], float]) -> float:
    """The highest rate of a few runs: what the machine can do when nothing else takes its time."""
    best, repeats = 0.0, 0
    first = time.perf_counter()
    while repeats < _REPEATS or time.perf_counter() - first < _AT_LEAST_S:
        began = time.perf_counter()
        amount = work()
        best = max(best, amount / (time.perf_counter() - began))
        repeats += 1
    return best
