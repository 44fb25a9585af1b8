"""Mixtures of experts and adapters: whether they are right on the device, and their times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.run import Session
from benchmarks.gpu.timing import Case
from kvarn.kernels.adapters import AdapterPart, pack_adapter
from kvarn.kernels.batch import HeadShape
from kvarn.kernels.weights import Weight


class Mixture:
    """One layer of random experts: those of a model with 30B numbers, or tiny ones."""

    def __init__(self, session: Session, form: str = "plain") -> None:
        """`form`: one of `kernel_stages.FORMATS`."""
        self._session = session
        self.hidden, self.inner, self.experts, self.each = (64, 32, 4, 2) if session.dry else (2048, 768, 128, 8)
        shapes = ((2 * self.inner, self.hidden), (self.hidden, self.inner))
        self.weights = [
            [
                torch.randn(shape, device=session.device, dtype=session.dtype) / shape[1] ** 0.5
                for _ in range(self.experts)
            ]
            for shape in shapes
        ]
        kernels = session.kernels
        held = [
            [Weight(weight) if form == "plain" else kernels.packer.quantize(weight, form) for weight in weights]  # type: ignore[arg-type]
            for weights in self.weights
        ]
        self.weights = [[weight.dequantized() for weight in weights] for weights in held]
        first, second = (
            [kernels.packer.pack_linear(weight, None, activation) for weight in weights]
            for weights, activation in zip(held, ("silu", None), strict=True)  # type: ignore[arg-type]
        )
        grouped = kernels.packer.group_experts(first, second, None)
        assert grouped is not None, "the kernels of GPUs group experts"
        self.layer = grouped
        self.expert_bytes = first[0].nbytes + second[0].nbytes

    def step(self, count: int) -> Callable[..., torch.Tensor]:
        """The layer over so many tokens, of which each call may take the first few."""
        generator = torch.Generator().manual_seed(count)
        x = torch.randn(count, self.hidden, generator=generator).to(self._session.device, self._session.dtype)
        scores = torch.rand(count, self.experts, generator=generator).to(self._session.device)
        shares, chosen = scores.topk(self.each)
        slots = torch.arange(count, device=self._session.device)
        self.inputs = x, shares, chosen

        def run(tokens: slice = slice(None)) -> torch.Tensor:
            return self.layer(x[tokens], shares[tokens], chosen[tokens], slots[tokens], None, None)

        return run

    def reference(self, tokens: int) -> torch.Tensor:
        """Of the last step, in float32."""
        x, shares, chosen = (each[:tokens].float() for each in self.inputs)
        out = torch.zeros_like(x)
        for token, experts in enumerate(chosen.int().tolist()):
            for number, expert in enumerate(experts):
                gate, up = (self.weights[0][expert].float() @ x[token]).chunk(2)
                out[token] += shares[token, number] * (self.weights[1][expert].float() @ (F.silu(gate) * up))
        return out


def mixture_correctness(session: Session) -> dict[str, Any]:
    """Against float32, and the bits of tokens among others, by the form of the experts' weights."""
    return {form: _mixture_compared(session, form) for form in ("plain", "fp8", "int4")}


def _mixture_compared(session: Session, form: str) -> dict[str, Any]:
    mixture = Mixture(session, form)
    run = mixture.step(session.most_rows)
    want = mixture.reference(4)
    alone = torch.cat([run(slice(token, token + 1)) for token in range(3)])
    numbers = range(2, session.most_rows + 1, 1 if session.dry else 17)
    others = [n for n in numbers if not torch.equal(run(slice(n))[:3], alone[:n])]
    return {
        "relative_error": float((run(slice(4)).float() - want).norm() / want.norm()),
        "numbers_of_rows_with_other_bits": others[:40],
    }


class Adapters:
    """Random adapters of one layer, in the blocks of a cache."""

    RANK = 16

    def __init__(self, session: Session) -> None:
        self.count, self.inputs, self.outputs = (2, 64, 48) if session.dry else (32, 4096, 6144)
        self._session = session
        cache = session.kernels.operations.new_kv_cache(
            1, 64 if session.dry else 4096, HeadShape(8, 8, 128), "bfloat16"
        )
        self.memory = session.kernels.operations.new_adapter_memory(cache, session.dtype)
        first = 0
        for index in range(self.count):
            a = torch.randn(self.RANK, self.inputs) / self.inputs**0.5
            b = torch.randn(self.outputs, self.RANK) / self.RANK**0.5
            packed = pack_adapter([[AdapterPart(0, a, b, 0.5)]], session.dtype)
            blocks = range(first, first + self.memory.num_blocks(packed))
            first, self.adapter_bytes = blocks.stop, packed.nbytes
            self.memory.write(packed, blocks)
            self.memory.place(index, packed, blocks)

    def step(self, indices: list[int]) -> tuple[Callable[[], None], torch.Tensor]:
        """What a layer adds for rows with these adapters, and the sums that it is added to."""
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(len(indices), self.inputs, generator=generator).to(self._session.device, self._session.dtype)
        out = torch.zeros(len(indices), self.outputs, device=self._session.device)
        batch = self.memory.batch(torch.tensor(indices))
        return lambda: batch.add(0, x, out), out


def adapter_correctness(session: Session) -> dict[str, Any]:
    """Whether rows have the same bits alone and among others."""
    adapters = Adapters(session)
    indices = [row % (adapters.count + 1) - 1 for row in range(4 if session.dry else 512)]
    results = []
    for count in (len(indices), 2):
        add, out = adapters.step(indices[:count])
        add()
        results.append(out[:2])
    return {"rows with the same bits among others": torch.equal(*results)}


def grouped_cases(session: Session) -> Iterator[Case]:
    """Timed: a mixture and what adapters add to a layer, by number of rows."""
    mixture = Mixture(session)
    for count in session.rows:
        run = mixture.step(count)
        visited = len(mixture.inputs[2].unique())
        yield f"mixture, {count} rows", run, visited * mixture.expert_bytes, None
    adapters = Adapters(session)
    for count in session.rows[:5]:
        indices = [row % adapters.count for row in range(count)]
        yield f"adapters, {count} rows", adapters.step(indices)[0], len(set(indices)) * adapters.adapter_bytes, None
