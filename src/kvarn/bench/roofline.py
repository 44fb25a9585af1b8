"""Roofline of the engine's steps: the least time that the machine allows a step, beside its measured time.

The floor is what the step must read and compute, over the machine's measured ceilings (`kvarn.costs`). The measured
step is the real one: scheduler, model and sampler in this process, without a gateway.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.engine import EngineConfig
from kvarn.costs.decoder import DecoderCosts, StepWork
from kvarn.costs.roofline import Ceilings, floor_s
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.engine.plan import Executor
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams

FIRST_TOKEN_ID = 300
"""Prompts are made of ids from here on: the lowest ones are special tokens in some vocabularies."""

_FILL_TOKENS = 4096
"""Prompt tokens computed in a step until a batch is complete: those that came first are then but few tokens ahead."""


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of step: a decode batch at a context length, or (batch 0) a prompt of that many tokens."""

    batch: int
    context: int

    @property
    def name(self) -> str:
        return f"decode {self.batch} x {self.context}" if self.batch else f"prefill {self.context}"

    def longest(self, steps: int) -> int:
        """Tokens that a sequence may reach while `steps` steps are measured."""
        return self.context + steps + self.batch + 2


@dataclass(frozen=True, slots=True)
class Point:
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
    """One point for each case, `steps` steps each (prompts: an eighth of that, at least one).

    The executor holds every case: `Case.longest` tokens for each sequence of its batch.
    """
    engine = engine_for(executor, max([case.batch for case in cases], default=0))
    for case in cases:
        if case.batch:
            work, seconds = _measure_decode(engine, case, costs, vocab_size, steps)
        else:
            seconds = [prefill_seconds(engine, case.context, turn, vocab_size) for turn in range(max(1, steps // 8))]
            work = costs.prefill(case.context)
        yield Point(case, work, floor_s(work, ceilings), statistics.median(seconds))


def _measure_decode(
    engine: EngineCore, case: Case, costs: DecoderCosts, vocab_size: int, steps: int
) -> tuple[StepWork, list[float]]:
    """Steps in which a whole batch decodes, its contexts about `case.context` long, and what such a step must do."""
    for number in range(case.batch):
        prompt = _prompt(max(1, case.context - steps // 2), number, vocab_size)
        engine.add(_request(str(number), prompt, steps + case.batch + 2))
    while engine.stats().batch_tokens != case.batch or engine.stats().batch_seqs != case.batch:
        engine.step()
    before = engine.stats()
    seconds = [_timed_step(engine) for _ in range(steps)]
    after = engine.stats()
    engine.abort_all()
    # What was read, not what was asked for: contexts grow with each step, and some began to earlier than others.
    kv_tokens = (after.work.kv_tokens_read_total - before.work.kv_tokens_read_total) / steps
    pairs = (after.work.attended_pairs_total - before.work.attended_pairs_total) / steps
    work = costs.step(tokens=case.batch, logits_rows=case.batch, kv_tokens=round(kv_tokens), pairs=pairs)
    return work, seconds


def prefill_seconds(engine: EngineCore, tokens: int, seed: int, vocab_size: int) -> float:
    engine.add(_request("0", _prompt(tokens, seed, vocab_size), 1))
    seconds = _timed_step(engine)
    engine.abort_all()
    return seconds


def engine_for(executor: Executor, batch: int = 1) -> EngineCore:
    """An engine that never holds work back and finds nothing of an earlier measurement in its cache.

    A step has room for `batch` decodes and at least one whole prompt beside them: in `batch` steps all of them decode.
    """
    config = EngineConfig(
        max_num_seqs=max(1, batch),
        token_budget=max(_FILL_TOKENS, executor.max_context_length) + batch,
        tpot_target_ms=1e9,
        prefix_cache=False,
        max_prefill_stretch=1e6,
    )
    return EngineCore(EngineParts(executor, config), SYSTEM_CLOCK.now)


def _request(name: str, prompt: list[int], max_tokens: int) -> Submit:
    sampling = SamplingParams(seed=1, temperature=0.0, max_tokens=max_tokens)
    return Submit(request_id=name, prompt_token_ids=prompt, sampling=sampling)


def _prompt(length: int, seed: int, vocab_size: int) -> list[int]:
    span = vocab_size - FIRST_TOKEN_ID
    return [FIRST_TOKEN_ID + (7919 * (seed + 1) + 31 * place * (seed + 1)) % span for place in range(length)]


def _timed_step(engine: EngineCore) -> float:
    began = SYSTEM_CLOCK.now()
    engine.step()
    return SYSTEM_CLOCK.now() - began
