"""Attention of the compiled kernels against its definition in float64, and against itself, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch

from kvarn.costs.decoder import KvDtype
from kvarn.kernels.batch import HeadShape, PagedBatch, Rotation
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu._native import emulated_instruction_sets, usable_instruction_sets
from kvarn.kernels.cpu.attention import plan_attention
from kvarn.kernels.cpu.kv_cache import new_kv_cache
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.linear import Norm
from packing import read_kv

SIZE = 16
POISON = 0xFF  # makes NaN of a float, a bfloat16 and a scale alike

QWEN, LLAMA = HeadShape(16, 8, 128), HeadShape(32, 8, 64)
INSTRUCTION_SETS = [*usable_instruction_sets(), *emulated_instruction_sets()]
DTYPES: list[KvDtype] = ["float32", "bfloat16", "int8"]


@dataclass
class Sequence:
    """Tokens of one request: what the product before attention gives for each, and the blocks they go to."""

    qkv: torch.Tensor
    blocks: list[int]
    computed: int = 0

    def slots(self, first: int, last: int) -> torch.Tensor:
        return torch.tensor([self.blocks[p // SIZE] * SIZE + p % SIZE for p in range(first, last)], dtype=torch.int64)


@dataclass
class Layer:
    """One layer with a cache of its own, in which every slot not yet written is poison."""

    heads: HeadShape
    dtype: KvDtype = "float32"
    isa: str = usable_instruction_sets()[0]
    window: int | None = None
    softcap: float | None = None
    half: int = -1
    with_norm: bool = True
    seed: int = 0
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.backend = _native.Backend(self.isa)
        self.cache = new_kv_cache(1, 800, self.heads, self.dtype)
        self.keys, self.values = self.cache.keys[0], self.cache.values[0]
        self.keys.fill_(POISON)
        self.values.fill_(POISON)
        self.free = (torch.randperm(799, generator=self.generator) + 1).tolist()
        self.half = self.heads.dim // 2 if self.half < 0 else self.half
        weight = torch.randn(self.heads.query + self.heads.kv, self.heads.dim, generator=self.generator) * 0.3 + 1
        self.norm = Norm(weight, 1e-5) if self.with_norm else None
        self.scale = self.heads.dim**-0.5

    def new(self, length: int, like: Sequence | None = None, shared: int = 0) -> Sequence:
        """Random tokens; or those of `like`, of whose blocks it has the first `shared` (computed) tokens."""
        width = (self.heads.query + 2 * self.heads.kv) * self.heads.dim
        qkv = torch.randn(length, width, generator=self.generator)
        blocks: list[int] = []
        if like is not None:
            qkv[: len(like.qkv)] = like.qkv[:length]
            blocks = like.blocks[: shared // SIZE]
        needed = -(-length // SIZE) - len(blocks)
        return Sequence(qkv, blocks + [self.free.pop() for _ in range(needed)], shared)

    def step(self, *rows: tuple[Sequence, int]) -> list[torch.Tensor]:
        """Compute the next `count` tokens of each sequence; their results [count, H D]."""
        batch, qkv = self.batch(*rows)
        padded = torch.full((len(qkv), qkv.shape[1] + 3), math.nan)
        padded[:, : qkv.shape[1]] = qkv
        plan = plan_attention(self.backend, batch, self.heads, self.window)
        out = plan.run(
            padded[:, : qkv.shape[1]],
            self.rotation(batch.positions),
            self.norm,
            self.keys,
            self.values,
            self.scale,
            self.softcap,
        )
        for sequence, count in rows:
            sequence.computed += count
        return list(out.split([count for _, count in rows]))

    def batch(self, *rows: tuple[Sequence, int]) -> tuple[PagedBatch, torch.Tensor]:
        spans = [(s, s.computed, s.computed + count) for s, count in rows]
        tables = torch.zeros((len(rows), max(len(s.blocks) for s, _ in rows) + 2), dtype=torch.int32)
        for row, (sequence, _, last) in enumerate(spans):
            used = -(-last // SIZE)
            tables[row, :used] = torch.tensor(sequence.blocks[:used], dtype=torch.int32)
        starts = torch.tensor([0, *(count for _, count in rows)]).cumsum(0)
        batch = PagedBatch(
            positions=torch.cat([torch.arange(first, last) for _, first, last in spans]),
            query_starts=starts.to(torch.int32),
            context_lens=torch.tensor([last for _, _, last in spans], dtype=torch.int32),
            block_tables=tables,
            slot_mapping=torch.cat([s.slots(first, last) for s, first, last in spans]),
        )
        return batch, torch.cat([s.qkv[first:last] for s, first, last in spans])

    def rotation(self, positions: torch.Tensor) -> Rotation:
        angles = positions[:, None] * 1000.0 ** (-torch.arange(self.half) / max(1, self.half))
        return Rotation(angles.cos().float(), angles.sin().float())

    def prepared(self, sequence: Sequence, last: int) -> torch.Tensor:
        """Query and key heads of the first tokens as the definition has them: [last, H + G, D] float64."""
        count = self.heads.query + self.heads.kv
        x = sequence.qkv[:last, : count * self.heads.dim].double().view(last, count, self.heads.dim)
        if self.norm is not None:
            x = x / (x.square().mean(-1, keepdim=True) + self.norm.eps).sqrt() * self.norm.weight
        rotation = self.rotation(torch.arange(last))
        cos, sin = rotation.cos.double()[:, None], rotation.sin.double()[:, None]
        a, b, rest = x.split([self.half, self.half, self.heads.dim - 2 * self.half], -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def definition(self, sequence: Sequence, first: int) -> torch.Tensor:
        """Results of the tokens from `first` on, with keys and values as the cache holds them: float64."""
        last = sequence.computed
        queries = self.prepared(sequence, last)[first:, : self.heads.query]
        # Blocks left of a window may be gone.
        seen_from = 0 if self.window is None else max(0, first + 1 - self.window)
        slots = sequence.slots(seen_from, last)
        keys, values = (kv.double() for kv in read_kv(self.keys, self.values, slots, self.heads))
        group = self.heads.query // self.heads.kv
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * self.scale
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        at, seen = torch.arange(first, last)[:, None], torch.arange(seen_from, last)
        hidden = seen > at
        if self.window is not None:
            hidden |= seen <= at - self.window
        weights = torch.softmax(scores.masked_fill(hidden, -math.inf), -1)
        return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)


@pytest.fixture
def threads() -> Iterator[None]:
    """For tests that change the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def check_mixed_step(layer: Layer, lengths: list[tuple[int, int]]) -> None:
    """`lengths`: (queries, context) of each sequence."""
    sequences = [layer.new(context) for _, context in lengths]
    for sequence, (count, context) in zip(sequences, lengths, strict=True):
        if context > count:
            layer.step((sequence, context - count))
    found = layer.step(*((s, count) for s, (count, _) in zip(sequences, lengths, strict=True)))
    for out, sequence, (count, context) in zip(found, sequences, lengths, strict=True):
        want = layer.definition(sequence, context - count)
        torch.testing.assert_close(out.double(), want, atol=3e-6, rtol=2e-5)


BORDERS = [(1, 1), (1, 15), (1, 16), (1, 17), (7, 7), (1, 255), (1, 256), (1, 257), (16, 48), (2, 258), (3, 513)]
CHUNKS = [(1, 700), (40, 40), (33, 290), (9, 271), (70, 300), (256, 256), (5, 5)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("lengths", [BORDERS, CHUNKS], ids=["borders", "chunks"])
def test_mixed_steps_equal_the_definition(isa: str, dtype: KvDtype, lengths: list[tuple[int, int]]) -> None:
    check_mixed_step(Layer(HeadShape(4, 2, 32), dtype, isa), lengths)


SHAPES = [(1, 1, 2), (1, 3, 10), (2, 1, 24), (3, 1, 40), (4, 2, 48), (5, 1, 64)]
SHAPES += [(6, 1, 80), (7, 1, 96), (8, 2, 128), (13, 1, 30), (2, 2, 256), (71, 1, 16)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("group", "kv_heads", "dim"), SHAPES)
def test_any_heads_equal_the_definition(group: int, kv_heads: int, dim: int, dtype: KvDtype) -> None:
    layer = Layer(HeadShape(group * kv_heads, kv_heads, dim), dtype)
    check_mixed_step(layer, [(1, 31), (1, 290), (34, 300), (3, 3), (1, 16)])


@pytest.mark.parametrize("isa", usable_instruction_sets())
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("window", [1, 5, 16, 17, 250, 300])
def test_windows_and_softcaps_equal_the_definition(window: int, softcap: float | None, isa: str) -> None:
    layer = Layer(HeadShape(4, 2, 16), isa=isa, window=window, softcap=softcap)
    check_mixed_step(layer, [(1, 1), (1, 17), (1, 600), (40, 330), (4, 514), (70, 70), (1, 256), (300, 301)])


@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize("half", [0, 1, 5, 16, 20])
def test_partial_rotations_equal_the_definition(half: int, with_norm: bool) -> None:
    check_mixed_step(Layer(HeadShape(2, 1, 40), half=half, with_norm=with_norm), [(1, 20), (20, 30)])


@pytest.mark.parametrize("seed", range(10))
def test_random_steps_equal_the_definition(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    heads = HeadShape((kv := draw(1, 4)) * draw(1, 6), kv, 2 * draw(1, 40))
    layer = Layer(heads, DTYPES[draw(0, 3)], window=None if draw(0, 2) else draw(1, 400), seed=seed)
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
    shared_items = plan_attention(layer.backend, batch, layer.heads, window).native.num_items
    found = layer.step(*zip(tails, counts, strict=True))
    for out, copy, count in zip(found, copies, counts, strict=True):
        (want,) = layer.step((copy, count))
        assert torch.equal(out, want)
    for copy, count in zip(copies, counts, strict=True):
        copy.computed -= count
    batch, _ = layer.batch(*zip(copies, counts, strict=True))
    apart = plan_attention(layer.backend, batch, layer.heads, window).native
    assert shared_items < sum(-(-copy.computed // 256) for copy in copies)
    assert apart.num_items > 0


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_threads_gives_the_same_bits(dtype: KvDtype, count: int, threads: None) -> None:
    lengths = [(1, 700), (100, 333), (1, 256), (20, 700)]

    def run(number: int) -> torch.Tensor:
        torch.set_num_threads(number)
        layer = Layer(QWEN, dtype)
        sequences = [layer.new(context) for _, context in lengths]
        for sequence, (tokens, context) in zip(sequences, lengths, strict=True):
            layer.step((sequence, context - tokens))
        return torch.cat(layer.step(*((s, tokens) for s, (tokens, _) in zip(sequences, lengths, strict=True))))

    assert torch.equal(run(count), run(1))


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("heads", [HeadShape(2, 2, 10), LLAMA])
def test_the_cache_holds_keys_and_values_rounded_to_its_type(heads: HeadShape, isa: str) -> None:
    def written(dtype: KvDtype) -> tuple[torch.Tensor, torch.Tensor]:
        layer = Layer(heads, dtype, isa)
        sequence = layer.new(37)
        for count in (1, 2, 20, 14):
            layer.step((sequence, count))
        keys, values = read_kv(layer.keys, layer.values, sequence.slots(0, 37), heads)
        if dtype == "float32":
            torch.testing.assert_close(keys.double(), layer.prepared(sequence, 37)[:, heads.query :], atol=1e-5, rtol=0)
            assert torch.equal(values.flatten(1), sequence.qkv[:, (heads.query + heads.kv) * heads.dim :])
        return keys, values

    exact, halves, bytes_ = (written(dtype) for dtype in DTYPES)
    for plain, half, byte in zip(exact, halves, bytes_, strict=True):
        assert torch.equal(half, plain.bfloat16().float())
        scales = plain.abs().amax(-1, keepdim=True) / 127
        torch.testing.assert_close(byte / scales, (plain / scales).round(), atol=2e-4, rtol=0)


def test_a_key_of_zeros_survives_int8() -> None:
    layer = Layer(HeadShape(1, 1, 8), "int8", with_norm=False)
    sequence = layer.new(3)
    sequence.qkv[1] = 0
    layer.step((sequence, 3))
    keys, values = read_kv(layer.keys, layer.values, sequence.slots(0, 3), layer.heads)
    assert not keys[1].any() and not values[1].any()
    assert keys[0].any() and values[2].any()


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.03), ("int8", 0.06)])
def test_small_caches_stay_near_the_float_one(dtype: KvDtype, tolerance: float) -> None:
    exact, small = Layer(QWEN), Layer(QWEN, dtype)
    (want,), (found,) = (layer.step((layer.new(300), 300)) for layer in (exact, small))
    torch.testing.assert_close(found, want, atol=tolerance, rtol=0)


def test_writing_touches_only_the_steps_slots() -> None:
    layer = Layer(HeadShape(2, 2, 8), "bfloat16")
    sequences = [layer.new(50), layer.new(70)]
    layer.step((sequences[0], 18), (sequences[1], 33))
    everywhere = torch.arange(800 * SIZE)
    before = read_kv(layer.keys, layer.values, everywhere, layer.heads)
    layer.step((sequences[0], 1), (sequences[1], 20))
    after = read_kv(layer.keys, layer.values, everywhere, layer.heads)
    want = set(torch.cat([sequences[0].slots(18, 19), sequences[1].slots(33, 53)]).tolist())
    for old, new in zip(before, after, strict=True):
        changed = (old.nan_to_num(7.0) != new.nan_to_num(7.0)).flatten(1).any(1)
        assert set(changed.nonzero().flatten().tolist()) == want


def test_blocks_left_of_the_window_are_not_read() -> None:
    layer = Layer(HeadShape(2, 1, 8), window=20)
    sequence = layer.new(400)
    layer.step((sequence, 390))
    for block in sequence.blocks[: (391 - 20) // SIZE]:
        layer.keys[block] = POISON
        layer.values[block] = POISON
    (found,) = layer.step((sequence, 10))
    torch.testing.assert_close(found.double(), layer.definition(sequence, 390), atol=3e-6, rtol=2e-5)


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
    plan = plan_attention(layer.backend, empty, layer.heads)
    out = plan.run(torch.zeros(0, 32), rotation, layer.norm, layer.keys, layer.values, 1.0)
    assert out.shape == (0, 16)


def test_what_does_not_fit_is_refused() -> None:
    layer = Layer(HeadShape(2, 1, 8))
    sequence = layer.new(20)
    batch, qkv = layer.batch((sequence, 5))
    rotation = layer.rotation(batch.positions)

    def attend(qkv: torch.Tensor, heads: HeadShape = layer.heads, keys: torch.Tensor = layer.keys) -> None:
        plan_attention(layer.backend, batch, heads).run(qkv, rotation, None, keys, layer.values, 1.0)

    with pytest.raises(KernelInputError, match="tokens"):
        attend(qkv[:4])
    with pytest.raises(KernelInputError, match="evenly"):
        attend(qkv, HeadShape(3, 2, 8))
    with pytest.raises(KernelInputError, match="value blocks"):
        attend(qkv, keys=layer.keys[:7])
    with pytest.raises(KernelInputError, match="float32"):
        attend(qkv.double())
    with pytest.raises(KernelInputError, match="window"):
        plan_attention(layer.backend, batch, layer.heads, 0)
    with pytest.raises(KernelInputError, match="even ones"):
        new_kv_cache(1, 4, HeadShape(1, 1, 7), "float32")
