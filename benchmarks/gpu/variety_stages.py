"""What models and requests ask for beside the plain case: other attention, choices of experts, sampling, long
prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu.attention_stages import AttentionCase, Kind
from benchmarks.gpu.engine_stages import TOKEN_BUDGET, Engine, batch_speed
from benchmarks.gpu.run import THREADS, Session, free_memory
from benchmarks.gpu.shapes import random_decoder
from kvarn.kernels.backend import Kernels
from kvarn.kernels.batch import HeadShape
from kvarn.kernels.dispatch import kernels_for
from kvarn.kernels.experts import RouterSpec
from kvarn.kernels.sampling import SamplingTensors

KINDS = {
    "plain": ((32, 8, 128), Kind()),
    "a window": ((32, 8, 128), Kind(window=300)),
    "a soft cap": ((32, 8, 128), Kind(softcap=20.0)),
    "sinks": ((32, 8, 128), Kind(sinks=True)),
    "an fp8 cache": ((32, 8, 128), Kind(cache="fp8")),
    "heads of 256": ((16, 8, 256), Kind()),
    "heads of 256, a window, a soft cap": ((16, 8, 256), Kind(window=300, softcap=20.0)),
    "heads of 64, a window, sinks": ((64, 8, 64), Kind(window=128, sinks=True)),
    "heads of 96": ((32, 32, 96), Kind()),
}
"""Heads, and the rest."""
DRY = ("an fp8 cache", "heads of 64, a window, sinks", "heads of 256, a window, a soft cap")
"""Those of a dry run."""


class Variety:
    """Attention of one of `KINDS`: a step of decodes and parts of prompts, and one of many decodes."""

    def __init__(self, session: Session, name: str) -> None:
        heads, kind = KINDS[name]
        if session.dry:
            heads = 4, 2, heads[2] // 8
        mixed = [(1, 20), (3, 18)] if session.dry else [(1, 700), (9, 300), (1, 40), (200, 900)]
        many = [(1, 20)] * 2 if session.dry else [(1, 1088)] * 64
        self.lengths = mixed
        self.mixed = AttentionCase(session, HeadShape(*heads), mixed, kind=kind)
        self.many = AttentionCase(session, HeadShape(*heads), many, kind=kind)

    def launch(self) -> None:
        """Whatever is compared or timed."""
        self.mixed.step()()
        for row in range(len(self.lengths)):
            self.mixed.step(range(row, row + 1), 1)()
        self.many.step()()

    def compared(self, session: Session, reference: Kernels) -> dict[str, Any]:
        """Against float32; bits of sequences alone; microseconds."""
        together = self.mixed.step()()
        want = self.mixed.step(reference=reference)().view_as(together)
        of_each = together.split([count for count, _ in self.lengths])
        alone = [
            torch.equal(self.mixed.step(range(row, row + 1), 1)(), of_each[row][-1:])
            for row in range(len(self.lengths))
        ]
        time = session.timer.time(self.many.step())["us"]
        return {
            "relative_error": float((together.float() - want).norm() / want.norm()),
            "last token with the same bits alone": all(alone),
            "64 of 1088 tokens, us": time,
            "floor_us": self.many.num_bytes / session.read_gb_per_s / 1e3,
        }


def variety(session: Session) -> dict[str, Any]:
    """Attention of all kinds, experts chosen, masks and draws: right or not, and their times."""
    reference = kernels_for("torch", session.device)
    found: dict[str, Any] = {}
    kinds = {name: Variety(session, name) for name in (DRY if session.dry else KINDS)}
    drawing = Drawing(session)

    def launch() -> None:
        for each in kinds.values():
            each.launch()
        drawing.launch()
        for _, spec, experts, each in _routers():
            _route(session, session.kernels, spec, experts, each)

    session.compile_ahead(launch)
    for name, case in kinds.items():
        found[name] = _tried(lambda case=case: case.compared(session, reference))  # type: ignore[misc]
        session.note("variety", found)
    for name, spec, experts, each in _routers():
        found[name] = _tried(
            lambda spec=spec, experts=experts, each=each: {  # type: ignore[misc]
                "as the reference": all(
                    torch.allclose(*pair, rtol=1e-4)
                    for pair in zip(
                        _route(session, session.kernels, spec, experts, each)(),
                        _route(session, reference, spec, experts, each)(),
                        strict=True,
                    )
                ),
                "us": session.timer.time(_route(session, session.kernels, spec, experts, each))["us"],
            }
        )
        session.note("variety", found)
    found["sampling"] = _tried(lambda: drawing.compared(session, reference))
    return found


def _tried(compare: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a comparison finds, or why it found nothing: the others go on."""
    try:
        return compare()
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {str(error)[-300:]}"}


def _routers() -> Iterator[tuple[str, RouterSpec, int, int]]:
    yield "router, 8 of 128", RouterSpec(), 128, 8
    grouped = RouterSpec(
        scoring="sigmoid", choice_bias=True, groups=8, groups_per_token=4, group_score="best_two", scale=2.5
    )
    yield "router, 8 of 256 by groups", grouped, 256, 8


def _route(
    session: Session, kernels: Kernels, spec: RouterSpec, experts: int, each: int
) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(experts)
    count = 3 if session.dry else 256
    numbers = torch.stack([torch.randperm(experts, generator=generator) for _ in range(count)]) / experts
    bias = torch.rand(experts, generator=generator).to(session.device) if spec.choice_bias else None
    on_device = numbers.to(session.device)
    return lambda: kernels.operations.route(on_device, each, spec, bias)


class Drawing:
    """Rows of logits of a large vocabulary, and how tokens are drawn from them."""

    def __init__(self, session: Session) -> None:
        self.rows, self.vocab = (3, 200) if session.dry else (256, 128256)
        generator = torch.Generator(session.device).manual_seed(5)
        self.logits = 3 * torch.randn(self.rows, self.vocab, generator=generator, device=session.device)
        self._session = session
        bits = torch.randint(0, 256, (32, -(-self.vocab // 32) * 4), dtype=torch.uint8)
        self.masks = {row: bits[row].numpy().tobytes() for row in range(min(32, self.rows))}

    def params(self, kind: str) -> SamplingTensors:
        """Of all rows."""
        device, rows = self._session.device, self.rows
        top_k, top_p, min_p = {"plain": (0, 1.0, 0.0), "top-p": (0, 0.9, 0.0), "top-k": (40, 1.0, 0.0)}.get(
            kind, (40, 0.9, 0.02)
        )
        return SamplingTensors(
            torch.full((rows,), 0.8, device=device),
            torch.full((rows,), top_k, device=device),
            torch.full((rows,), top_p, dtype=torch.float64, device=device),
            torch.full((rows,), min_p, device=device),
            torch.linspace(0.01, 0.99, rows, dtype=torch.float64, device=device),
        )

    def draw(self, kernels: Kernels, kind: str, count: int) -> Callable[[], torch.Tensor]:
        """Tokens of the first rows."""
        params, maxima = self.params(kind), self.logits.amax(1)
        rows = torch.arange(count, device=self._session.device)
        own = params.take(rows)
        return lambda: kernels.operations.draw_tokens(self.logits, rows, maxima[:count], own)

    def launch(self) -> None:
        """Whatever is compared or timed."""
        self._session.kernels.operations.most_likely(self.logits)
        self.draw(self._session.kernels, "all", 1)()
        self._session.kernels.operations.mask_logits(self.logits.clone(), self.masks)

    def compared(self, session: Session, reference: Kernels) -> dict[str, Any]:
        """Tokens that differ from the reference's, and microseconds by rows."""
        found: dict[str, Any] = {}
        kernels = session.kernels
        tokens, _ = kernels.operations.most_likely(self.logits)
        found["most likely differ"] = int((tokens != self.logits.argmax(1)).sum())
        found["most likely, us"] = session.timer.time(lambda: kernels.operations.most_likely(self.logits))["us"]
        for kind in ("plain", "top-p", "top-k", "all"):
            drawn, want = (self.draw(each, kind, self.rows)() for each in (kernels, reference))
            found[f"{kind}: differ"] = int((drawn != want).sum())
            alone = torch.cat([self.draw(kernels, kind, 1)()])
            found[f"{kind}: alone as among others"] = bool(alone[0] == drawn[0])
            for count in {1} if session.dry else {1, min(32, self.rows), self.rows}:
                found[f"{kind}, {count} rows, us"] = session.timer.time(self.draw(kernels, kind, count))["us"]
        ours, theirs = self.logits.clone(), self.logits.clone()
        kernels.operations.mask_logits(ours, self.masks)
        reference.operations.mask_logits(theirs, self.masks)
        found["masks as the reference"] = torch.equal(ours, theirs)
        return found


def drawn(session: Session) -> dict[str, Any]:
    """The engine with requests that are not greedy, on the last shape: whether a request's tokens are those it gets
    alone, and speed."""
    model = random_decoder(session.shapes[-1], kernels_for("triton", session.device))
    batch = min(32, max(session.batches))
    engine = Engine(session, model, batch=batch)
    engine.executor.compile_ahead(TOKEN_BUDGET, THREADS)
    found: dict[str, Any] = {}
    kinds: dict[str, dict[str, Any]] = {
        "greedy": {},
        "temperature": {"temperature": 0.8},
        "top-k, top-p, min-p": {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
        "penalties": {"temperature": 0.8, "presence_penalty": 0.5, "repetition_penalty": 1.1},
    }
    for name in ("penalties",) if session.dry else kinds:
        params = kinds[name]
        if not session.dry:
            batch_speed(session, engine, batch, **params)  # compiles and captures
        found[name] = batch_speed(session, engine, batch, **params)
        session.note("drawn", found)
    engine.executor.shutdown()
    return found


def long_prompts(session: Session) -> dict[str, Any]:
    """Seconds from a prompt to its first token, with nothing else to do, on the first shape."""
    model = random_decoder(session.shapes[0], kernels_for("triton", session.device))
    lengths = (5,) if session.dry else (1024, 2048, 8192)
    engine = Engine(session, model, longest=max(lengths) + 2, batch=2)
    engine.executor.compile_ahead(TOKEN_BUDGET, THREADS)
    found: dict[str, Any] = {}
    for length in lengths:
        seconds = []
        for number in range(2 if session.dry else 4):
            engine.submit(str(number), length, 1)
            began = time.monotonic()
            last = max(now for now, _ in engine.drain())
            seconds.append(last - began)
        found[f"{length} tokens, ms"] = [1e3 * each for each in sorted(seconds[1:])]
        session.note("long_prompts", found)
    engine.executor.shutdown()
    free_memory()
    return found
