"""How near the engine's steps come to what the machine allows: the floor of a step beside its measured time.

The floor is what the step must read and compute, over the machine's measured ceilings (`kvarn.planner`). The measured
step is the real one: scheduler, model and sampler in this process, without a gateway.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvarn.config import EngineConfig
from kvarn.engine import EngineCore
from kvarn.engine.plan import Executor
from kvarn.planner import Ceilings, DecoderCosts, StepWork, floor_s
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams

FIRST_TOKEN_ID = 300
"""Prompts are made of ids from here on: the lowest ones are special tokens in some vocabularies."""


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of step: a decode batch at a context length, or (batch 0) a prompt of that many tokens."""

    batch: int
    context: int

    @property
    def name(self) -> str:
        """For a table."""
        return f"decode {self.batch} x {self.context}" if self.batch else f"prefill {self.context}"


@dataclass(frozen=True, slots=True)
class Point:
    """One case, measured."""

    case: Case
    work: StepWork
    floor_s: float
    step_s: float
    """Median."""

    @property
    def ratio(self) -> float:
        """Share of the ceiling that was reached: 1 is the floor itself."""
        return self.floor_s / self.step_s


def measure(
    executor: Executor, costs: DecoderCosts, ceilings: Ceilings, cases: Sequence[Case], vocab_size: int, steps: int
) -> Iterator[Point]:
    """One point for each case, `steps` steps each (prompts: an eighth of that, at least one)."""
    engine = engine_for(executor)
    for case in cases:
        if case.batch:
            # The context grows by one token a step: its middle is what the floor is counted for.
            seconds = decode_seconds(engine, case.batch, max(1, case.context - steps // 2), steps, vocab_size)
            work = costs.decode(case.batch, case.context)
        else:
            seconds = [prefill_seconds(engine, case.context, turn, vocab_size) for turn in range(max(1, steps // 8))]
            work = costs.prefill(case.context)
        yield Point(case, work, floor_s(work, ceilings), statistics.median(seconds))


def decode_seconds(engine: EngineCore, batch: int, context: int, steps: int, vocab_size: int) -> list[float]:
    """Seconds of `steps` steps in which `batch` sequences with `context` tokens each decode one more."""
    for number in range(batch):
        engine.add(_request(str(number), _prompt(context, number, vocab_size), steps + 2))
    while engine.stats().batch_tokens != batch or engine.stats().batch_seqs != batch:
        engine.step()
    seconds = [_timed_step(engine) for _ in range(steps)]
    _finish(engine)
    return seconds


def prefill_seconds(engine: EngineCore, tokens: int, seed: int, vocab_size: int) -> float:
    """Seconds of the one step that computes a prompt."""
    engine.add(_request("0", _prompt(tokens, seed, vocab_size), 1))
    seconds = _timed_step(engine)
    _finish(engine)
    return seconds


def engine_for(executor: Executor) -> EngineCore:
    """An engine that never holds work back and finds nothing of an earlier measurement in its cache."""
    config = EngineConfig(
        token_budget=executor.max_context_length * 2, tpot_target_ms=1e9, prefix_cache=False, max_prefill_stretch=1e6
    )
    return EngineCore(executor, config, time.monotonic)


def _request(name: str, prompt: list[int], max_tokens: int) -> Submit:
    sampling = SamplingParams(seed=1, temperature=0.0, max_tokens=max_tokens)
    return Submit(request_id=name, prompt_token_ids=prompt, sampling=sampling)


def _prompt(length: int, seed: int, vocab_size: int) -> list[int]:
    span = vocab_size - FIRST_TOKEN_ID
    return [FIRST_TOKEN_ID + (7919 * (seed + 1) + 31 * place * (seed + 1)) % span for place in range(length)]


def _timed_step(engine: EngineCore) -> float:
    began = time.perf_counter()
    engine.step()
    return time.perf_counter() - began


def _finish(engine: EngineCore) -> None:
    while engine.has_work():
        engine.step()
