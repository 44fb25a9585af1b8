"""Attention of the compiled kernels and of torch against its definition in float64, and itself, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from attention_layers import (
    BEST_AND_TILES,
    BY_TILES,
    DTYPES,
    INSTRUCTION_SETS,
    QWEN,
    SIZE,
    TORCH,
    Layer,
    check_against_definition,
    check_mixed_step,
    poison,
)
from kvarn.kernels.attention import AttentionLayer
from kvarn.kernels.batch import HeadShape, PagedBatch
from kvarn.kernels.cpu._native import AttentionMetadata, usable_instruction_sets
from kvarn.kernels.cpu.attention import CpuAttentionMetadata
from kvarn.kernels.cpu.kv_cache import new_kv_cache
from kvarn.kernels.errors import KernelInputError
from kvarn.shapes import KvDtype


@pytest.fixture
def threads() -> Iterator[None]:
    """For tests that change the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


BORDERS = [(1, 1), (1, 15), (1, 16), (1, 17), (7, 7), (1, 255), (1, 256), (1, 257), (16, 48), (2, 258), (3, 513)]
EVERY_BACKEND = [(isa, dtype) for isa in INSTRUCTION_SETS for dtype in DTYPES]
EVERY_BACKEND += [(TORCH, dtype) for dtype in DTYPES[:2]]
FEW_BACKENDS = [(isa, dtype) for isa in BEST_AND_TILES for dtype in DTYPES] + [(TORCH, DTYPES[0])]
CHUNKS = [(1, 700), (40, 40), (33, 290), (9, 271), (70, 300), (256, 256), (5, 5)]
LONG = [(1, 1000), (300, 500), (1, 700), (129, 129), (1, 31)]
"""More than torch's gathers or multiplies at once."""


@pytest.mark.parametrize(("isa", "dtype"), EVERY_BACKEND)
@pytest.mark.parametrize("lengths", [BORDERS, CHUNKS, LONG], ids=["borders", "chunks", "long"])
def test_mixed_steps_equal_the_definition(isa: str, dtype: KvDtype, lengths: list[tuple[int, int]]) -> None:
    check_mixed_step(Layer(HeadShape(4, 2, 32), dtype, isa), lengths)


SHAPES = [(1, 1, 2), (1, 3, 10), (2, 1, 24), (3, 1, 40), (4, 2, 48), (5, 1, 64)]
SHAPES += [(6, 1, 80), (7, 1, 96), (8, 2, 128), (13, 1, 30), (2, 2, 256), (71, 1, 16)]


@pytest.mark.parametrize(("isa", "dtype"), FEW_BACKENDS)
@pytest.mark.parametrize(("group", "kv_heads", "dim"), SHAPES)
def test_any_heads_equal_the_definition(group: int, kv_heads: int, dim: int, isa: str, dtype: KvDtype) -> None:
    layer = Layer(HeadShape(group * kv_heads, kv_heads, dim), dtype, isa)
    check_mixed_step(layer, [(1, 31), (1, 290), (34, 300), (3, 3), (1, 16)])


@pytest.mark.parametrize(
    ("isa", "dtype"),
    [(isa, "float32") for isa in (TORCH, *usable_instruction_sets())]
    + [(isa, dtype) for isa in BY_TILES for dtype in DTYPES[1:]],
)
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("window", [1, 5, 16, 17, 250, 300])
def test_windows_and_softcaps_equal_the_definition(
    window: int, softcap: float | None, isa: str, dtype: KvDtype
) -> None:
    layer = Layer(HeadShape(4, 2, 16), dtype, isa, window=window, softcap=softcap)
    check_mixed_step(layer, [(1, 1), (1, 17), (1, 600), (40, 330), (4, 514), (70, 70), (1, 256), (300, 301)])


@pytest.mark.parametrize(("isa", "dtype"), EVERY_BACKEND)
def test_sinks_take_a_share_of_the_weights(isa: str, dtype: KvDtype) -> None:
    """Lengths that one piece of work answers, and lengths whose segments several read."""
    check_mixed_step(Layer(HeadShape(4, 2, 32), dtype, isa, with_sinks=True), CHUNKS)


@pytest.mark.parametrize("isa", [TORCH, BEST_AND_TILES[0]])
@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize("half", [0, 1, 5, 16, 20])
def test_partial_rotations_equal_the_definition(half: int, with_norm: bool, isa: str) -> None:
    check_mixed_step(Layer(HeadShape(2, 1, 40), isa=isa, half=half, with_norm=with_norm), [(1, 20), (20, 30)])


@pytest.mark.parametrize("isa", [*BEST_AND_TILES, TORCH])
@pytest.mark.parametrize("seed", range(10))
def test_random_steps_equal_the_definition(seed: int, isa: str) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    heads = HeadShape((kv := draw(1, 4)) * draw(1, 6), kv, 2 * draw(1, 40))
    layer = Layer(
        heads, DTYPES[draw(0, 2 if isa == TORCH else 3)], isa, window=None if draw(0, 2) else draw(1, 400), seed=seed
    )
    contexts = [draw(1, 600) for _ in range(draw(1, 7))]
    check_mixed_step(layer, [(1 if draw(0, 2) else draw(1, context + 1), context) for context in contexts])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("window", [None, 100])
def test_a_prompt_cut_anywhere_gives_the_same_bits(window: int | None, isa: str, dtype: KvDtype) -> None:
    layer = Layer(HeadShape(6, 2, 24), dtype, isa, window=window)
    whole = layer.new(600)
    (want,) = layer.step((whole, 600))
    for cuts in ([1] * 20 + [580], [300, 1, 1, 1, 297], [16, 17, 255, 8, 9, 295], [599, 1]):
        cut = layer.new(600, like=whole)
        found = torch.cat([layer.step((cut, count))[0] for count in cuts])
        assert torch.equal(found, want)
        layer.free += cut.blocks


def test_a_row_of_torch_that_decodes_does_not_depend_on_its_neighbours() -> None:
    layer, contexts = Layer(HeadShape(4, 2, 8), isa=TORCH), (40, 71, 5, 90)
    sequences = [layer.new(context) for context in contexts]
    copies = [layer.new(context, like=sequence) for context, sequence in zip(contexts, sequences, strict=True)]
    for each, context in zip([*sequences, *copies], contexts * 2, strict=True):
        layer.step((each, context - 1))
    together = layer.step(*((each, 1) for each in sequences), (layer.new(60), 60))
    for found, copy in zip(together[:-1], copies, strict=True):
        assert torch.equal(found, layer.step((copy, 1))[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_a_token_alone_or_in_a_batch_gives_the_same_bits(isa: str, dtype: KvDtype) -> None:
    lengths = [(1, 700), (1, 3), (50, 333), (1, 256), (4, 600), (1, 290)]
    together, alone = (Layer(HeadShape(4, 2, 16), dtype, isa) for _ in range(2))
    sequences = [together.new(context) for _, context in lengths]
    for sequence, (count, context) in zip(sequences, lengths, strict=True):
        if context > count:
            together.step((sequence, context - count))
    found = together.step(*((s, count) for s, (count, _) in zip(sequences, lengths, strict=True)))
    for out, sequence, (count, context) in zip(found, sequences, lengths, strict=True):
        single = alone.new(context, like=sequence)
        (want,) = alone.step((single, context))
        assert torch.equal(out, want[-count:])


def native_plan(layer: Layer, batch: PagedBatch) -> AttentionMetadata:
    plan = layer.plan(batch)
    assert isinstance(plan, CpuAttentionMetadata)
    return plan.native


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("window", [None, 300])
def test_a_shared_prefix_gives_the_same_bits_as_one_of_its_own(window: int | None, isa: str, dtype: KvDtype) -> None:
    layer = Layer(HeadShape(4, 2, 16), dtype, isa, window=window)
    root = layer.new(640)
    layer.step((root, 640))
    branch = layer.new(900, like=root, shared=640)
    layer.step((branch, 200))
    tails = [layer.new(700, like=root, shared=shared) for shared in (256, 512, 512, 640)]
    tails += [layer.new(900, like=branch, shared=832) for _ in range(2)]
    tails += [layer.new(300), layer.new(641, like=root, shared=640)]
    for tail in tails:
        tail.computed or layer.step((tail, 200))
        if len(tail.qkv) == 700:
            layer.step((tail, 690 - tail.computed))
    counts = [1, 3, 1, 8, 1, 2, 1, 1]
    copies = [layer.new(len(tail.qkv), like=tail) for tail in tails]
    for copy, tail in zip(copies, tails, strict=True):
        layer.step((copy, tail.computed))
    batch, _ = layer.batch(*zip(tails, counts, strict=True))
    shared_items = native_plan(layer, batch).num_items
    found = layer.step(*zip(tails, counts, strict=True))
    for out, copy, count in zip(found, copies, counts, strict=True):
        (want,) = layer.step((copy, count))
        assert torch.equal(out, want)
    for copy, count in zip(copies, counts, strict=True):
        copy.computed -= count
    batch, _ = layer.batch(*zip(copies, counts, strict=True))
    apart = native_plan(layer, batch)
    assert shared_items < sum(-(-copy.computed // 256) for copy in copies)
    assert apart.num_items > 0


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", BEST_AND_TILES)
def test_any_number_of_threads_gives_the_same_bits(isa: str, dtype: KvDtype, count: int, threads: None) -> None:
    lengths = [(1, 700), (100, 333), (1, 256), (20, 700)]

    def run(number: int) -> torch.Tensor:
        torch.set_num_threads(number)
        layer = Layer(QWEN, dtype, isa)
        sequences = [layer.new(context) for _, context in lengths]
        for sequence, (tokens, context) in zip(sequences, lengths, strict=True):
            layer.step((sequence, context - tokens))
        return torch.cat(layer.step(*((s, tokens) for s, (tokens, _) in zip(sequences, lengths, strict=True))))

    assert torch.equal(run(count), run(1))


@pytest.mark.parametrize(("isa", "dtype"), FEW_BACKENDS)
def test_blocks_left_of_the_window_are_not_read(isa: str, dtype: KvDtype) -> None:
    layer = Layer(HeadShape(2, 1, 8), dtype, isa, window=20)
    sequence = layer.new(400)
    layer.step((sequence, 390))
    for block in sequence.blocks[: (391 - 20) // SIZE]:
        poison(layer.keys[block])
        poison(layer.values[block])
    (found,) = layer.step((sequence, 10))
    check_against_definition(layer, found.double(), layer.definition(sequence, 390))


def test_a_step_without_tokens_gives_nothing() -> None:
    layer = Layer(HeadShape(2, 1, 8))
    empty = PagedBatch(
        positions=torch.zeros(0, dtype=torch.int64),
        query_starts=torch.zeros(1, dtype=torch.int32),
        context_lens=torch.zeros(0, dtype=torch.int32),
        block_tables=torch.zeros((0, 4), dtype=torch.int32),
        slot_mapping=torch.zeros(0, dtype=torch.int64),
    )
    rotation = layer.rotation(empty.positions)
    out = layer.plan(empty).run(torch.zeros(0, 32), rotation, AttentionLayer(1.0, layer.norm), layer.keys, layer.values)
    assert out.shape == (0, 16)


def test_inputs_of_other_shapes_or_types_are_refused() -> None:
    layer = Layer(HeadShape(2, 1, 8))
    sequence = layer.new(20)
    batch, qkv = layer.batch((sequence, 5))
    rotation = layer.rotation(batch.positions)

    def attend(qkv: torch.Tensor, keys: torch.Tensor = layer.keys) -> None:
        layer.plan(batch).run(qkv, rotation, AttentionLayer(1.0), keys, layer.values)

    with pytest.raises(KernelInputError, match="tokens"):
        attend(qkv[:4])
    with pytest.raises(KernelInputError, match="value blocks"):
        attend(qkv, keys=layer.keys[:7])
    with pytest.raises(KernelInputError, match="float32"):
        attend(qkv.double())
    with pytest.raises(KernelInputError, match="even ones"):
        new_kv_cache(1, 4, HeadShape(1, 1, 7), "float32")
