"""An engine with modelled time: the real engine process and scheduler, and steps that sleep as long as they would take.

So the machine's noise matters little, and the capacity is known: it follows from the times below.
"""

from __future__ import annotations

import time

from kvarn.engine.core import EngineParts
from kvarn.engine.plan import RowResult, StepPlan, StepResult, SynchronousExecutor
from kvarn.engine.step_time import StepShape, StepTimeModel
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.spec import ReplicaSpec, ReportProgress
from kvarn.wire.messages import ModelCard, StepTimes

TIMES = StepTimes(fixed_s=0.040, prefill_token_s=2e-4, prefill_pair_s=8e-9, decode_row_s=1.6e-3, decode_token_s=8e-7)
"""A large model on a small accelerator, for which the default targets are a matter: 50 sequences decode in 0.13 s, a
second reads 4,500 tokens of prompts. What the machine's other work adds to a step is little beside that."""

CONTEXT = 4096
BLOCKS = 16384

_EXPECTED = [
    StepShape(0, 0, 1, 64),
    StepShape(0, 0, 8, 2048),
    StepShape(0, 0, 64, 8192),
    StepShape(0, 0, 64, 65536),
    StepShape(64, 2080, 0, 0),
    StepShape(1024, 524800, 0, 0),
    StepShape(512, 512 * 2048, 8, 2048),
]
"""Steps whose times the engine is told at its start, as a real one is told the roofline's."""


def step_s(shape: StepShape) -> float:
    """Seconds of a step."""
    return (
        TIMES.fixed_s
        + shape.prefill_tokens * TIMES.prefill_token_s
        + shape.prefill_pairs * TIMES.prefill_pair_s
        + shape.decode_rows * TIMES.decode_row_s
        + shape.decode_context * TIMES.decode_token_s
    )


class SleepingExecutor(SynchronousExecutor):
    """Takes the modelled time; each token is followed by its successor, within ids that are ordinary text."""

    num_blocks = BLOCKS
    max_context_length = CONTEXT

    def execute(self, plan: StepPlan) -> StepResult:
        """Sleep for a step."""
        began = time.perf_counter()
        shape = StepShape()
        for row in plan.rows:
            shape.add(row.start, len(row.token_ids))
        rows = [
            RowResult(row.slot, [300 + (row.token_ids[-1] - 299) % 3000] if row.sample else []) for row in plan.rows
        ]
        time.sleep(max(0.0, step_s(shape) - (time.perf_counter() - began)))
        return StepResult(plan.step, rows, time.perf_counter() - began)

    def shutdown(self) -> None:
        """Nothing to free."""


def build(spec: ReplicaSpec, _report: ReportProgress) -> GenerateService:
    """The engine process's service."""
    card = ModelCard(
        kind="generate",
        architecture="modelled",
        dtype="none",
        vocab_size=4096,
        max_context_length=CONTEXT,
        num_parameters=0,
        kv_blocks=BLOCKS,
    )
    known = StepTimeModel(expected=[(shape, step_s(shape)) for shape in _EXPECTED])
    return GenerateService(EngineParts(SleepingExecutor(), spec.model_config.engine, step_time=known), card)
