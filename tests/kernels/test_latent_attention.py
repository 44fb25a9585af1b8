"""Attention over latent rows, of the reference and of each instruction set, against its definition in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvarn.kernels.errors import KernelInputError, UnsupportedByBackendError
from latent_rows import SIZE, LatentRows


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_of_any_mix_equal_the_definition(every_kernels: Any, dtype: Any) -> None:
    world = LatentRows(every_kernels, dtype, [70, 17, 33, 1])
    found: list[list[torch.Tensor]] = [[] for _ in world.rows]
    for counts in ([(0, 33), (1, 1)], [(2, 16), (0, 1), (1, 16)], [(0, 36), (2, 17), (3, 1)]):
        for (sequence, _), part in zip(counts, world.step(*counts), strict=True):
            found[sequence].append(part)
    # The reference rounds queries to the cache's type, too.
    tolerance = 1e-5 if dtype == "float32" else 3e-2
    for sequence, parts in enumerate(found):
        torch.testing.assert_close(torch.cat(parts).double(), world.defined(sequence), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compiled_results_are_those_of_the_sequence_alone_to_the_last_bit(isa: str, dtype: Any) -> None:
    from kvarn.kernels.cpu.backend import cpu_kernels

    lengths = [70, 17, 33]
    together, alone = (LatentRows(cpu_kernels(isa), dtype, lengths) for _ in range(2))
    want = together.step((0, 70), (1, 17), (2, 33))
    for sequence, length in enumerate(lengths):
        parts = [alone.step((sequence, count))[0] for count in (1, 3, length - 5, 1)]
        assert torch.equal(torch.cat(parts), want[sequence])


def test_inputs_of_other_shapes_or_types_are_refused(isa: str) -> None:
    from kvarn.kernels.cpu.backend import cpu_kernels

    kernels = cpu_kernels(isa)
    with pytest.raises(UnsupportedByBackendError, match="bfloat16 or float32"):
        kernels.operations.new_latent_cache(1, 4, SIZE, "int8")
    world = LatentRows(kernels, "float32", [5])
    world.queries[0] = world.queries[0][..., :-1]
    with pytest.raises(KernelInputError, match="queries"):
        world.step((0, 5))
    world = LatentRows(kernels, "float32", [5])
    world.tables[0] = [60]
    with pytest.raises(KernelInputError, match="block 60 of a cache of 60"):
        world.step((0, 5))
