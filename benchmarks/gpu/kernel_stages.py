"""What the device can do, whether the kernels are right there, and how near they come."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.attention_stages import attention_bits, attention_cases
from benchmarks.gpu.grouped_stages import adapter_correctness, grouped_cases, mixture_correctness
from benchmarks.gpu.run import Session
from benchmarks.gpu.shapes import SHAPES
from benchmarks.gpu.timing import Case
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
    found |= {"mixture": mixture_correctness(session), "adapters": adapter_correctness(session)}
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


def cases(session: Session) -> Iterator[Case]:
    """What is timed."""
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
    yield from attention_cases(session)
    yield from grouped_cases(session)


def _call(function: Callable[..., Any] | Linear, *inputs: torch.Tensor) -> Callable[[], Any]:
    return lambda: function(*inputs)
