"""What the device can do, whether the kernels are right there, and how near they come."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.attention_stages import attention_cases
from benchmarks.gpu.delta_stages import delta_cases
from benchmarks.gpu.grouped_stages import grouped_cases
from benchmarks.gpu.run import Session
from benchmarks.gpu.shapes import SHAPES
from benchmarks.gpu.timing import Case
from kvarn.kernels.linear import Linear, Norm
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
    # Kernels, since a captured copy is the copy engine's, and a sum of whole numbers is slow.
    found["copy_gb_per_s"] = 2 * size / session.timer.time(lambda: torch.neg(source, out=target))["us"] / 1e3
    found["read_gb_per_s"] = size / session.timer.time(lambda: source.view(torch.float32).sum())["us"] / 1e3
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


class Product:
    """A product as a layer of a model asks for it: of normed rows (qkv with a bias), or added to the residual
    stream."""

    def __init__(self, session: Session, name: str, inputs: int, outputs: int, activation: str, form: str) -> None:
        self.weight = make_weight(session, inputs, outputs * (2 if activation else 1), form)
        self.activation = activation
        self.bias = torch.randn(outputs, device=session.device) if name.endswith("qkv") else None
        self.layer = session.kernels.packer.pack_linear(self.weight, self.bias, activation or None)  # type: ignore[arg-type]
        self.adds = name.endswith(("output", "down"))
        self.norm = None if self.adds else Norm(torch.rand(inputs, device=session.device) + 0.5, 1e-6)
        self.x = torch.randn(session.most_rows, inputs, device=session.device).to(session.dtype)
        self.stream = torch.randn(session.most_rows, outputs, device=session.device).to(session.dtype)

    def __call__(self, rows: slice) -> torch.Tensor:
        """Of some rows."""
        add_to = self.stream[rows].clone() if self.adds else None
        return self.layer(self.x[rows], norm=self.norm, add_to=add_to)

    def reference(self, rows: slice) -> torch.Tensor:
        """In float32."""
        x = self.x[rows].float()
        if self.norm is not None:
            x = x * (x.square().mean(-1, keepdim=True) + self.norm.eps).rsqrt() * self.norm.weight
        want = x @ self.weight.dequantized().T
        if self.bias is not None:
            want += self.bias
        if self.activation:
            gate, up = want.chunk(2, -1)
            want = F.silu(gate) * up
        return want + self.stream[rows].float() if self.adds else want


def make_weight(session: Session, inputs: int, outputs: int, form: str) -> Weight:
    """A random weight in one of `FORMATS`."""
    plain = torch.randn(outputs, inputs, device=session.device) / inputs**0.5
    return Weight(plain.to(session.dtype)) if form == "plain" else session.kernels.packer.quantize(plain, form)  # type: ignore[arg-type]


def products(session: Session) -> Iterator[tuple[str, Product]]:
    """Of the first two shapes: those of the third have nothing that these lack."""
    for name, inputs, outputs, activation in layers(session):
        if name.startswith(tuple(f"{shape} " for shape in session.shapes[:2])):
            for form in FORMATS:
                yield f"{name}, {form}", Product(session, name, inputs, outputs, activation, form)


def correctness(session: Session) -> dict[str, Any]:
    """Each product against float32, and the bits of all rows by the number of rows beside them."""
    torch.backends.cuda.matmul.allow_tf32 = False
    session.compile_ahead(lambda: _launch_all(session))
    found: dict[str, Any] = {}
    for name, product in products(session):
        found[name] = _compared(session, product)
        session.note("correctness", found)
    return found


def _launch_all(session: Session) -> None:
    for _, product in products(session):
        for rows in (1, 5, 17, 33, 65, session.most_rows):
            product(slice(min(rows, session.most_rows)))


def _compared(session: Session, product: Product) -> dict[str, Any]:
    want, all_rows = product.reference(slice(64)), product(slice(None))
    error = (all_rows[:64].float() - want).norm() / want.norm()
    numbers = range(1, session.most_rows)
    alone = range(min(64, session.most_rows))
    return {
        "relative_error": float(error),
        "numbers_of_rows_with_other_bits": [n for n in numbers if not torch.equal(product(slice(n)), all_rows[:n])][
            :40
        ],
        "rows_with_other_bits_alone": [
            n for n in alone if not torch.equal(product(slice(n, n + 1)), all_rows[n : n + 1])
        ],
    }


def kernel_times(session: Session) -> dict[str, Any]:
    """Microseconds of each kernel, beside those of torch and of the floor: the bytes at the measured rate."""
    session.compile_ahead(lambda: _call_all(session))
    found: dict[str, Any] = {}
    for name, call, num_bytes, peer in _wanted(session):
        entry: dict[str, Any] = session.timer.time(call)
        entry["floor_us"] = num_bytes / session.read_gb_per_s / 1e3
        entry["of_floor"] = entry["floor_us"] / entry["us"]
        if peer is not None:
            entry["torch_us"] = session.timer.time(peer)["us"]
        found[name] = entry
        session.note("kernel_times", found)
    return found


def _call_all(session: Session) -> None:
    for _, call, _, _ in _wanted(session):
        call()


def _wanted(session: Session) -> Iterator[Case]:
    return (case for case in cases(session) if session.only in case[0])


def cases(session: Session) -> Iterator[Case]:
    """What is timed."""
    for name, inputs, outputs, activation in layers(session):
        for form in FORMATS:
            weight = make_weight(session, inputs, outputs * (2 if activation else 1), form)
            layer = session.kernels.packer.pack_linear(weight, None, activation or None)  # type: ignore[arg-type]
            for rows in session.rows:
                x = torch.randn(rows, inputs, device=session.device, dtype=session.dtype)
                peer = None
                if form == "plain":
                    peer = _call(F.linear, x, weight.values)
                yield f"{name}, {form}, {rows} rows", _call(layer, x), layer.nbytes, peer
    for others in (attention_cases, grouped_cases, delta_cases):
        yield from others(session)


def _call(function: Callable[..., Any] | Linear, *inputs: torch.Tensor) -> Callable[[], Any]:
    return lambda: function(*inputs)
