"""What the device can do, whether the kernels are right there, and how near they come."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.run import Session
from benchmarks.gpu.shapes import SHAPES
from kvarn.kernels.batch import HeadShape, PagedBatch, Rotation
from kvarn.kernels.linear import Linear
from kvarn.kernels.weights import Weight

FORMATS = ("plain", "int8", "fp8", "int4")


def probe(session: Session) -> dict[str, Any]:
    """Versions, and the ceilings against which everything else is held."""
    found: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    import triton

    found["triton"] = triton.__version__
    if session.timer.on_gpu:
        found["device"] = torch.cuda.get_device_name()
        found["memory_bytes"] = list(torch.cuda.mem_get_info())
    size = 4 * 2**30 if session.timer.on_gpu else 2**20
    source = torch.zeros(size // 2, dtype=torch.bfloat16, device=session.device)
    target = torch.empty_like(source)
    found["copy_gb_per_s"] = 2 * size / session.timer.time(lambda: target.copy_(source))["us"] / 1e3
    found["read_gb_per_s"] = size / session.timer.time(lambda: source.view(torch.int32).sum())["us"] / 1e3
    session.read_gb_per_s = max(found["copy_gb_per_s"], found["read_gb_per_s"])
    side = 8192 if session.timer.on_gpu else 64
    square = torch.randn(side, side, device=session.device, dtype=torch.bfloat16)
    found["bf16_tflop_per_s"] = 2 * side**3 / session.timer.time(lambda: square @ square)["us"] / 1e6
    return found


def layers(session: Session) -> Iterator[tuple[str, int, int, str]]:
    """Name, inputs, outputs and activation of each product of the shapes."""
    for shape in session.shapes:
        config = SHAPES[shape]
        hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
        heads = config["num_attention_heads"]
        yield f"{shape} qkv", hidden, (heads + 2 * config["num_key_value_heads"]) * dim, ""
        yield f"{shape} output", heads * dim, hidden, ""
        yield f"{shape} gate, up", hidden, inner, "silu"
        yield f"{shape} down", inner, hidden, ""


def make_weight(session: Session, inputs: int, outputs: int, form: str) -> Weight:
    """A random weight in one of `FORMATS`."""
    plain = torch.randn(outputs, inputs, device=session.device) / inputs**0.5
    return Weight(plain.to(session.dtype)) if form == "plain" else session.kernels.quantize(plain, form)  # type: ignore[arg-type]


def correctness(session: Session) -> dict[str, Any]:
    """Each product against float32, and the bits of rows among others: the table of docs/gpu.md."""
    torch.backends.cuda.matmul.allow_tf32 = False
    found: dict[str, Any] = {"attention": attention_bits(session)}
    for name, inputs, outputs, activation in layers(session):
        for form in FORMATS:
            weight = make_weight(session, inputs, outputs * (2 if activation else 1), form)
            layer = session.kernels.pack_linear(weight, None, activation or None)  # type: ignore[arg-type]
            x = torch.randn(session.most_rows, inputs, device=session.device, dtype=session.dtype)
            want = x[:64].float() @ weight.dequantized().T
            if activation:
                gate, up = want.chunk(2, -1)
                want = F.silu(gate) * up
            error = (layer(x[:64]).float() - want).norm() / want.norm()
            entry: dict[str, Any] = {"relative_error": float(error)}
            if form in ("plain", "int8") or session.thorough:
                alone = torch.cat([layer(x[row : row + 1]) for row in range(4)])
                every = range(2, session.most_rows + 1)
                entry["numbers_of_rows_with_other_bits"] = [n for n in every if not _same(layer(x[:n]), alone)][:40]
            found[f"{name}, {form}"] = entry
    return found


def _same(found: torch.Tensor, alone: torch.Tensor) -> bool:
    rows = min(len(found), len(alone))
    return torch.equal(found[:rows], alone[:rows])


def kernel_times(session: Session) -> dict[str, Any]:
    """Microseconds of each kernel, beside those of torch and of the floor: the bytes at the measured rate."""
    found: dict[str, Any] = {}
    for name, call, num_bytes, peer in cases(session):
        entry: dict[str, Any] = session.timer.time(call)
        entry["floor_us"] = num_bytes / session.read_gb_per_s / 1e3
        entry["of_floor"] = entry["floor_us"] / entry["us"]
        if peer is not None:
            entry["torch_us"] = session.timer.time(peer)["us"]
        found[name] = entry
        session.note("kernel_times", found)
    return found


Case = tuple[str, Callable[[], Any], int, Callable[[], Any] | None]


def cases(session: Session) -> Iterator[Case]:
    """Name, call, bytes that it must read, and the same in torch where torch has it."""
    for name, inputs, outputs, activation in layers(session):
        for form in FORMATS:
            weight = make_weight(session, inputs, outputs * (2 if activation else 1), form)
            layer = session.kernels.pack_linear(weight, None, activation or None)  # type: ignore[arg-type]
            for rows in session.rows if form == "plain" else session.rows[:2]:
                x = torch.randn(rows, inputs, device=session.device, dtype=session.dtype)
                peer = None
                if form == "plain":
                    peer = _call(F.linear, x, weight.values)
                yield f"{name}, {form}, {rows} rows", _call(layer, x), layer.nbytes, peer
    for shape in session.shapes:
        config = SHAPES[shape]
        heads = HeadShape(config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"])
        for batch, queries, context in session.attentions:
            case = AttentionCase(session, heads, [(queries, context)] * batch)
            yield f"{shape} attention, {batch} x {queries} of {context}", case.step(), case.num_bytes, None


def _call(function: Callable[..., Any] | Linear, *inputs: torch.Tensor) -> Callable[[], Any]:
    return lambda: function(*inputs)


class AttentionCase:
    """A step of sequences (queries, context), with a cache of its own."""

    def __init__(self, session: Session, heads: HeadShape, lengths: list[tuple[int, int]]) -> None:
        self._session, self._heads, self._lengths = session, heads, lengths
        blocks = [-(-context // 16) for _, context in lengths]
        self._tables = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
        for row, part in enumerate(torch.randperm(sum(blocks), dtype=torch.int32).split(blocks)):
            self._tables[row, : len(part)] = part
        dtype = "float32" if session.dtype == torch.float32 else "bfloat16"
        self._cache = session.kernels.new_kv_cache(1, sum(blocks), heads, dtype)
        for tensor in (*self._cache.keys, *self._cache.values):
            tensor.normal_()
        width = (heads.query + 2 * heads.kv) * heads.dim
        self._rows = [torch.randn(count, width, device=session.device).to(session.dtype) for count, _ in lengths]
        self.num_bytes = 2 * sum(c for _, c in lengths) * heads.kv * heads.dim * self._cache.keys[0].element_size()

    def step(self, rows: range | None = None, last: int | None = None) -> Callable[[], torch.Tensor]:
        """The attention of some of the sequences (default: all), of each its last queries (default: all)."""
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
        batch = PagedBatch(*(part.to(self._session.device) for part in parts))
        angles = (positions[:, None] * 1e4 ** (-torch.arange(self._heads.dim // 2) / self._heads.dim)).float()
        rotation = Rotation(angles.cos().to(self._session.device), angles.sin().to(self._session.device))
        qkv = torch.cat([self._rows[row][-count:] for row, count in zip(picked, counts, strict=True)])
        plan = self._session.kernels.plan_attention(batch, self._heads)
        keys, values, scale = self._cache.keys[0], self._cache.values[0], self._heads.dim**-0.5
        return lambda: plan.run(qkv, rotation, None, keys, values, scale)


def attention_bits(session: Session) -> dict[str, bool]:
    """Whether sequences have the same bits in a batch, alone, and with their last token alone."""
    heads = HeadShape(32, 8, 128) if session.timer.on_gpu else HeadShape(2, 1, 16)
    lengths = [(1, 700), (9, 300), (1, 40)] * 100 if session.timer.on_gpu else [(1, 260), (3, 40)]
    case = AttentionCase(session, heads, lengths)
    together = case.step()().split([count for count, _ in lengths])
    found = {}
    for row, (count, context) in enumerate(lengths[:3]):
        own = range(row, row + 1)
        found[f"{count} of {context}, alone"] = torch.equal(case.step(own)(), together[row])
        found[f"{count} of {context}, its last token alone"] = torch.equal(case.step(own, 1)(), together[row][-1:])
    return found
