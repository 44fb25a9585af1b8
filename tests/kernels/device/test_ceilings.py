"""The measurements of the roofline's ceilings do all the work that they time."""

from __future__ import annotations

import numpy as np
import pytest

from kvarn.kernels.cpu._native import Backend

PIECE = 1 << 20
"""Bytes read as one piece."""


def test_every_word_is_read_once(isa: str) -> None:
    memory = np.random.default_rng(1).integers(0, 2**64, 3 * PIECE // 8, dtype=np.uint64)
    amount, digest = Backend(isa).read_all(memory.ctypes.data, memory.nbytes)
    assert amount == memory.nbytes
    assert digest == int(np.bitwise_xor.reduce(memory))


@pytest.mark.parametrize("method", ["multiply_floats", "multiply_bytes"])
def test_operations_grow_with_pieces_and_rounds(isa: str, method: str) -> None:
    multiply = getattr(Backend(isa), method)
    once = multiply(1, 1)[0]
    assert once > 0
    assert multiply(3, 2)[0] == 6 * once
