"""Tensors whose memory is given back for a while."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from kvarn.kernels.device.memory import zeros_on_demand
from kvarn.kernels.device.offload import Offloaded, tensors_of

TYPES = [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from(TYPES)), max_size=6), st.integers(0, 9).map(lambda n: 1 << n)
)
def test_numbers_are_back_in_the_same_tensors_and_views(sizes: list[tuple[int, torch.dtype]], chunk_bytes: int) -> None:
    tensors = [torch.randint(0, 100, (size,), dtype=torch.uint8).to(dtype) for size, dtype in sizes]
    views = [tensor[1::2] for tensor in tensors]
    before = [tensor.clone() for tensor in tensors]
    offloaded = Offloaded([*tensors, *views, *tensors], chunk_bytes)
    assert offloaded.nbytes == sum(tensor.nbytes for tensor in before)
    assert all(tensor.untyped_storage().nbytes() == 0 for tensor in tensors)
    offloaded.restore()
    for tensor, view, want in zip(tensors, views, before, strict=True):
        assert torch.equal(tensor.view(torch.uint8), want.view(torch.uint8))
        assert torch.equal(view.float(), want[1::2].float())
        assert view.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


def test_tensors_in_mapped_memory_stay_there() -> None:
    tensor = zeros_on_demand((5,), torch.float32).fill_(3)
    offloaded = Offloaded([tensor])
    assert offloaded.nbytes == 0 and tensor.tolist() == [3] * 5
    offloaded.restore()


@dataclass(frozen=True, slots=True)
class Slots:
    weight: torch.Tensor
    more: dict[str, Any]


def test_tensors_are_found_wherever_an_object_holds_them() -> None:
    tensors = [torch.tensor(number) for number in range(6)]

    class Plain:
        def __init__(self) -> None:
            self.parts = (Slots(tensors[0], {"a": [tensors[1]]}), partial(torch.add, tensors[2]))
            self.method = Slots(tensors[3], {}).__eq__
            self.itself = self
            self.names = {"module": torch, "class": Slots, "text": "x"}

    root = Plain()
    root.late = {frozenset({1}): (tensors[4],)}
    found = {id(tensor) for tensor in tensors_of(root)}
    assert found == {id(tensor) for tensor in tensors[:5]}
