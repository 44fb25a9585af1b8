"""The gated delta rule, of the reference and of each instruction set, against its definition in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from delta_sequences import ODD, PLACES, WIDE, Sequences
from kvarn.kernels.batch import PagedBatch, StateBatch
from kvarn.kernels.errors import KernelInputError
from kvarn.shapes.attention import DeltaDimensions


@pytest.mark.parametrize("dims", [ODD, WIDE], ids=["odd", "wide"])
def test_steps_of_any_mix_equal_the_definition(every_kernels: Any, dims: DeltaDimensions) -> None:
    world = Sequences(every_kernels, dims, [40, 17, 23, 1])
    found: list[list[torch.Tensor]] = [[] for _ in world.places]
    for counts in ([(0, 20), (1, 1)], [(2, 1), (0, 1), (1, 16)], [(0, 19), (2, 22), (3, 1)]):
        for (sequence, _), part in zip(counts, world.step(*counts), strict=True):
            found[sequence].append(part)
    for sequence, parts in enumerate(found):
        torch.testing.assert_close(torch.cat(parts).double(), world.defined(sequence), atol=2e-5, rtol=2e-5)


def test_a_copy_is_the_state_at_its_token(every_kernels: Any) -> None:
    world, cut = (Sequences(every_kernels, ODD, [30, 9]) for _ in range(2))
    world.step((0, 30), (1, 9), saves=((0, 1, 0), (0, 16, 2), (1, 9, 4)))
    for place, (sequence, count) in {0: (0, 1), 2: (0, 15), 4: (1, 9)}.items():
        cut.step((sequence, count))
        for tensor, other in ((world.cache.matrices, cut.cache.matrices), (world.cache.inputs, cut.cache.inputs)):
            torch.testing.assert_close(tensor[1][place], other[1][cut.places[sequence]])
    assert world.cache.matrices[0][:5].isnan().all(), "another layer was written"


def test_compiled_results_are_those_of_the_sequence_alone_to_the_last_bit(isa: str) -> None:
    from kvarn.kernels.cpu.backend import cpu_kernels

    lengths = [40, 17, 23]
    together, alone = (Sequences(cpu_kernels(isa), ODD, lengths) for _ in range(2))
    want = together.step((0, 40), (1, 17), (2, 23))
    for sequence, length in enumerate(lengths):
        parts = [alone.step((sequence, count))[0] for count in (1, 1, 5, length - 8, 1)]
        assert torch.equal(torch.cat(parts), want[sequence])
        place = together.places[sequence]
        assert torch.equal(alone.cache.matrices[1][place], together.cache.matrices[1][place])
        assert torch.equal(alone.cache.inputs[1][place], together.cache.inputs[1][place])


def test_inputs_of_other_shapes_or_types_are_refused(isa: str) -> None:
    from kvarn.kernels.cpu.backend import cpu_kernels

    kernels = cpu_kernels(isa)
    empty = torch.zeros(0, dtype=torch.int32)
    starts = torch.tensor([0, 5], dtype=torch.int32)
    states = StateBatch(torch.arange(1), torch.full((4,), -1))
    with pytest.raises(KernelInputError, match=r"saves must be int64 \[5\]"):
        kernels.operations.plan_delta(PagedBatch(empty, starts, empty, empty, empty, recurrent_states=states), ODD)
    with pytest.raises(KernelInputError, match="one place"):
        Sequences(kernels, ODD, [5]).step((0, 5), saves=((0, 2, PLACES - 1),))
    with pytest.raises(KernelInputError, match=f"state {PLACES} of a cache of {PLACES}"):
        Sequences(kernels, ODD, [5]).step((0, 5), saves=((0, 2, PLACES),))
    world = Sequences(kernels, ODD, [5])
    world.rates[0] = world.rates[0][:, 1:]
    with pytest.raises(KernelInputError, match="float32"):
        world.step((0, 5))
