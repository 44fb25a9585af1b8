"""Warm-up of an engine: computed before its first request."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kvarn.engine.plan import BlockUpdate, Executor, NewSequence, Row, StepPlan
from kvarn.replica.server.cpu import usable_cores
from kvarn.shapes import BLOCK_SIZE
from kvarn.wire.sampling import SamplingParams

_THREADS = 8
"""Most threads that compile: a part of the work needs Python's lock."""

log = logging.getLogger(__name__)


def compile_ahead(begin: Callable[[int], None]) -> None:
    """Begin to compile the kernels of all steps, in some threads; the engine is ready before they end. A failure is
    logged and costs speed alone: steps then wait for kernels that are new to them."""
    try:
        begin(min(_THREADS, max(1, usable_cores() // 2)))
    except Exception:
        log.exception("compiling kernels ahead failed; the first requests will be slower")


def warm_up(executor: Executor, vocab_size: int) -> None:
    """Compute one block of prompt and one token on top, then forget them: the first request finds everything warm."""
    length = min(BLOCK_SIZE, executor.max_context_length - 1)
    tokens = [place % vocab_size for place in range(length)]
    sequence = NewSequence(0, SamplingParams(seed=0, temperature=0.0, max_tokens=2), 0, tokens, [])
    prompt = Row(0, 0, tokens, [BlockUpdate(0, 0)], sample=True)
    second_block = [BlockUpdate(1, 1)] if len(tokens) == BLOCK_SIZE and executor.num_blocks > 1 else []
    decode = Row(0, len(tokens), [0], second_block, sample=True)
    plans = [StepPlan(0, [], [sequence], [], [prompt]), StepPlan(0, [0], [], [], [])]
    if second_block:
        plans.insert(1, StepPlan(0, [], [], [], [decode]))
    for plan in plans:
        executor.submit(plan)
        executor.collect()
