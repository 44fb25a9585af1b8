"""Attention on the device: whether its bits are right, and its times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from benchmarks.gpu.run import Session
from benchmarks.gpu.shapes import SHAPES
from benchmarks.gpu.timing import Case
from kvarn.kernels.attention import AttentionLayer
from kvarn.kernels.backend import Kernels
from kvarn.kernels.batch import HeadShape, PagedBatch, Rotation
from kvarn.shapes import KvDtype


@dataclass(frozen=True, slots=True)
class Kind:
    """What attention can be asked for besides heads and lengths."""

    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    cache: KvDtype = "bfloat16"


class AttentionCase:
    """A step of sequences (queries, context), with a cache of its own."""

    def __init__(
        self,
        session: Session,
        heads: HeadShape,
        lengths: list[tuple[int, int]],
        shared_blocks: int = 0,
        kind: Kind | None = None,
    ) -> None:
        """`shared_blocks`: of all sequences, the same; each has more of its own."""
        self._session, self._heads, self._lengths = session, heads, lengths
        self._kind = kind or Kind()
        self._sinks = torch.randn(heads.query, device=session.device) if self._kind.sinks else None
        blocks = [-(-context // 16) for _, context in lengths]
        self._tables = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
        for row, part in enumerate(torch.randperm(sum(blocks), dtype=torch.int32).split(blocks)):
            self._tables[row, : len(part)] = part
        self._tables[:, :shared_blocks] = self._tables[0, :shared_blocks]
        is_fp8 = self._kind.cache == "fp8"
        dtype = "float32" if session.dtype == torch.float32 and not is_fp8 else self._kind.cache
        self._cache = session.kernels.operations.new_kv_cache(1, sum(blocks), heads, dtype)
        for tensor in (*self._cache.keys, *self._cache.values):
            numbers = torch.randn(tensor.shape, device=session.device)
            tensor.copy_(numbers.to(torch.float8_e4m3fn).view(torch.uint8) if is_fp8 else numbers)
        width = (heads.query + 2 * heads.kv) * heads.dim
        self._rows = [torch.randn(count, width, device=session.device).to(session.dtype) for count, _ in lengths]
        read_once = 16 * shared_blocks * (len(lengths) - 1)
        window = self._kind.window or max(context for _, context in lengths)
        read = sum(min(context, window + count - 1) for count, context in lengths) - read_once
        self.num_bytes = 2 * read * heads.kv * heads.dim * self._cache.keys[0].element_size()

    def step(
        self,
        rows: range | None = None,
        last: int | None = None,
        *,
        shared: bool = False,
        reference: Kernels | None = None,
    ) -> Callable[[], torch.Tensor]:
        """The attention of some of the sequences (default: all), of each its last queries (default: all). `shared`: the
        kernels are told that they share a prefix. `reference`: other kernels, which compute it in float32."""
        picked = list(rows or range(len(self._lengths)))
        counts = [min(last or count, count) for count, _ in (self._lengths[row] for row in picked)]
        contexts = [self._lengths[row][1] for row in picked]
        spans = list(zip(counts, contexts, strict=True))
        positions = torch.cat([torch.arange(context - count, context) for count, context in spans])
        of_row = torch.repeat_interleave(torch.tensor(picked), torch.tensor(counts))
        parts = (
            positions,
            torch.tensor([0, *counts]).cumsum(0).int(),
            torch.tensor(contexts, dtype=torch.int32),
            self._tables[picked],
            self._tables[of_row, positions // 16].long() * 16 + positions % 16,
        )
        batch = PagedBatch(*(part.to(self._session.device) for part in parts), shares_prefix=shared)
        angles = (positions[:, None] * 1e4 ** (-torch.arange(self._heads.dim // 2) / self._heads.dim)).float()
        rotation = Rotation(angles.cos().to(self._session.device), angles.sin().to(self._session.device))
        qkv = torch.cat([self._rows[row][-count:] for row, count in zip(picked, counts, strict=True)])
        operations = (reference or self._session.kernels).operations
        plan = operations.plan_attention(batch, self._heads, self._kind.window)
        keys, values = self._cache.keys[0], self._cache.values[0]
        if reference is not None:
            qkv, keys, values = qkv.float(), _in_float32(keys), _in_float32(values)
        layer = AttentionLayer(self._heads.dim**-0.5, None, self._kind.softcap, self._sinks)
        return lambda: plan.run(qkv, rotation, layer, keys, values)


def _in_float32(cache: torch.Tensor) -> torch.Tensor:
    return (cache.view(torch.float8_e4m3fn) if cache.dtype == torch.uint8 else cache).float()


def attention_bits(session: Session) -> dict[str, bool]:
    """Whether sequences have the same bits in a batch, alone, and with their last token alone."""
    heads = HeadShape(32, 8, 128) if session.timer.on_gpu else HeadShape(2, 1, 16)
    lengths = [(1, 260), (3, 40)]
    if session.timer.on_gpu:  # the last one is divided among programs, which the others are not
        lengths = [*[(1, 700), (9, 300), (1, 40)] * 100, (1, 20_000)]
    case = AttentionCase(session, heads, lengths)
    together = case.step()().split([count for count, _ in lengths])
    found = {}
    for row in sorted({0, 1, min(2, len(lengths) - 1), len(lengths) - 1}):
        count, context = lengths[row]
        own = range(row, row + 1)
        found[f"{count} of {context}, alone"] = torch.equal(case.step(own)(), together[row])
        found[f"{count} of {context}, its last token alone"] = torch.equal(case.step(own, 1)(), together[row][-1:])
    decoding = AttentionCase(session, heads, shared_lengths(session), shared_blocks=16)
    found["a shared prefix read once"] = torch.equal(decoding.step(shared=True)(), decoding.step()())
    return found | latent_bits(session)


def shared_lengths(session: Session) -> list[tuple[int, int]]:
    """Sequences that decode behind one prefix."""
    return [(1, 258)] * 2 if session.dry else [(1, 1088)] * 64


class LatentCase:
    """A step over latent rows, every sequence with as many queries behind a context of the same length."""

    def __init__(self, session: Session, sequences: int, queries: int, context: int) -> None:
        self.heads, self.size, self.value = (4, 40, 32) if session.dry else (128, 576, 512)
        self._session, self._shape = session, (sequences, queries, context)
        blocks = -(-context // 16)
        self._tables = torch.randperm(sequences * blocks, dtype=torch.int32).view(sequences, blocks)
        dtype = "float32" if session.dtype == torch.float32 else "bfloat16"
        self._cache = (
            session.kernels.operations.new_latent_cache(1, sequences * blocks, self.size, dtype).keys[0].normal_()
        )
        self._queries, self._rows = (
            torch.randn(sequences, queries, *shape, device=session.device).to(session.dtype)
            for shape in ((self.heads, self.size), (self.size,))
        )
        self.num_bytes = sequences * context * self.size * self._cache.element_size()

    def step(self, rows: range | None = None) -> Callable[[], torch.Tensor]:
        """The attention of some of the sequences (default: all): [sequences, queries, heads, value]."""
        sequences, queries, context = self._shape
        picked = torch.tensor(list(rows or range(sequences)))
        positions = torch.arange(context - queries, context).repeat(len(picked), 1)
        tables = self._tables[picked]
        parts = (
            positions.flatten(),
            torch.arange(len(picked) + 1, dtype=torch.int32) * queries,
            torch.full((len(picked),), context, dtype=torch.int32),
            tables,
            (tables.gather(1, positions // 16).long() * 16 + positions % 16).flatten(),
        )
        device = self._session.device
        plan = self._session.kernels.operations.plan_latent(
            PagedBatch(*(each.to(device) for each in parts)), self.heads, self.size
        )
        own = [each[picked.to(device)].flatten(0, 1) for each in (self._queries, self._rows)]
        return lambda: plan.run(*own, self._cache, self.value, 0.07).unflatten(0, (len(picked), queries))


def latent_bits(session: Session) -> dict[str, bool]:
    """Whether sequences have the same bits alone and in a batch."""
    case = LatentCase(session, *((2, 1, 258) if session.dry else (200, 2, 700)))
    return {"latent rows, a sequence alone": torch.equal(case.step(range(1))()[0], case.step()()[0])}


def attention_cases(session: Session) -> Iterator[Case]:
    """Timed: attention of the shapes, of a shared prefix, and over latent rows."""
    for shape in session.shapes:
        config = SHAPES[shape]
        heads = HeadShape(config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"])
        for batch, queries, context in session.attentions:
            case = AttentionCase(session, heads, [(queries, context)] * batch)
            yield f"{shape} attention, {batch} x {queries} of {context}", case.step(), case.num_bytes, None
        if shape in ("8B", "tiny"):
            lengths = shared_lengths(session)
            case = AttentionCase(session, heads, lengths, shared_blocks=lengths[0][1] // 256 * 16)
            name = f"{shape} attention, {len(lengths)} behind one prefix"
            yield name, case.step(shared=True), case.num_bytes, None
    for batch, queries, context in session.attentions[:3]:
        latent = LatentCase(session, batch, queries, context)
        yield f"latent attention, {batch} x {queries} of {context}", latent.step(), latent.num_bytes, None
