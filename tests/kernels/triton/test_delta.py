"""The gated delta rule by the Triton kernels: against its definition and the reference."""

from __future__ import annotations

import pytest
import torch

from delta_sequences import ODD, PLACES, WIDE, Sequences
from kvarn.kernels.backend import Kernels
from kvarn.kernels.batch import PagedBatch, StateBatch
from kvarn.kernels.errors import KernelInputError
from kvarn.shapes.attention import DeltaDimensions

WINDOWLESS = DeltaDimensions(key_heads=2, value_heads=2, key_dim=4, value_dim=40, window=1)
"""A convolution that sees the token alone, and more columns than one program has."""


@pytest.mark.parametrize("dims", [ODD, WIDE, WINDOWLESS], ids=["odd", "wide", "windowless"])
def test_steps_of_any_mix_equal_the_definition(kernels: Kernels, dims: DeltaDimensions) -> None:
    world = Sequences(kernels, dims, [12, 5, 7, 1])
    found: list[list[torch.Tensor]] = [[] for _ in world.places]
    for counts in ([(0, 5), (1, 1)], [(2, 1), (0, 1), (1, 4)], [(0, 6), (2, 6), (3, 1)]):
        for (sequence, _), part in zip(counts, world.step(*counts), strict=True):
            found[sequence].append(part)
    for sequence, parts in enumerate(found):
        torch.testing.assert_close(torch.cat(parts).double(), world.defined(sequence), atol=2e-5, rtol=2e-5)


@pytest.mark.sample
def test_states_and_copies_are_those_of_the_reference(kernels: Kernels, reference: Kernels) -> None:
    worlds = [Sequences(each, ODD, [9, 6]) for each in (kernels, reference)]
    for world in worlds:
        world.step((0, 1), (1, 6), saves=((1, 1, 0), (1, 6, 2)))
        world.step((0, 8), saves=((0, 1, 4), (0, 5, 6)))
    found, want = (world.cache for world in worlds)
    for tensor, other in ((found.matrices, want.matrices), (found.inputs, want.inputs)):
        torch.testing.assert_close(tensor, other, atol=2e-5, rtol=2e-5, equal_nan=True)
        assert not tensor[1, [0, 2, 4, 6, *worlds[0].places]].isnan().any()
        assert tensor[0, :8].isnan().all() and tensor[1, [1, 3, 5, 7]].isnan().all()


def test_a_sequence_has_the_same_bits_in_a_prompt_and_token_by_token(kernels: Kernels) -> None:
    together, alone = (Sequences(kernels, ODD, [9, 4]) for _ in range(2))
    want = together.step((1, 4), (0, 9))[1]
    parts = [alone.step((0, count))[0] for count in (1, 1, 5, 2)]
    assert torch.equal(torch.cat(parts), want)
    place = together.places[0]
    for tensor, other in zip(*((each.cache.matrices, each.cache.inputs) for each in (alone, together)), strict=True):
        assert torch.equal(tensor[1, place], other[1, place])


def test_rows_that_fill_a_step_up_have_no_state(kernels: Kernels) -> None:
    """One with a token, and one without."""
    world, plain = (Sequences(kernels, ODD, [3]) for _ in range(2))
    empty = torch.zeros(0, dtype=torch.int32)
    batch = PagedBatch(
        positions=empty,
        query_starts=torch.tensor([0, 3, 4, 4], dtype=torch.int32),
        context_lens=empty,
        block_tables=empty,
        slot_mapping=empty,
        recurrent_states=StateBatch(torch.tensor([world.places[0], -1, -1]), torch.full((4,), -1)),
    )
    projected, rates = (torch.cat([of[0], of[0][:1]]) for of in (world.projected, world.rates))
    out = kernels.operations.plan_delta(batch, ODD).run(projected, rates, world.weights, world.cache, 1)
    assert torch.equal(out[:3], plain.step((0, 3))[0])
    assert out.isfinite().all()
    for tensor, other in zip(*((each.cache.matrices, each.cache.inputs) for each in (world, plain)), strict=True):
        torch.testing.assert_close(tensor, other, atol=0, rtol=0, equal_nan=True)


def test_numbers_of_half_the_size_are_computed_in_float32(kernels: Kernels, reference: Kernels) -> None:
    worlds = [Sequences(each, ODD, [5]) for each in (kernels, reference)]
    for world in worlds:
        world.projected[0], world.rates[0] = world.projected[0].bfloat16(), world.rates[0].bfloat16()
    found, want = (world.step((0, 5))[0] for world in worlds)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), want.float(), atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(worlds[0].cache.matrices[1, PLACES - 1], worlds[1].cache.matrices[1, PLACES - 1])


def test_fading_is_exact_where_it_is_slow(kernels: Kernels) -> None:
    """A softplus far below 1 adds up over long prompts."""
    worlds = [Sequences(kernels, ODD, [2]) for _ in range(2)]
    world = worlds[0]
    world.rates[0][:, ODD.value_heads :] = -12.0
    world.weights.decay_bias.zero_()
    world.weights.decay.fill_(-16.0)
    for name in ("projected",):
        getattr(world, name)[0][:, : ODD.channels] = 0.0
    place = world.places[0]
    world.cache.matrices[1, place] = 1.0
    world.step((0, 2))
    want = torch.tensor(-12.0, dtype=torch.float64).exp().log1p().mul(-32.0).exp()
    found = world.cache.matrices[1, place].double()
    torch.testing.assert_close(found, want.expand_as(found), atol=2e-7, rtol=0)


def test_what_does_not_fit_is_refused(kernels: Kernels) -> None:
    world = Sequences(kernels, ODD, [5])
    world.rates[0] = world.rates[0][:, 1:]
    with pytest.raises(KernelInputError, match="rows must be"):
        world.step((0, 5))
