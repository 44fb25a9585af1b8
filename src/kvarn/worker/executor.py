"""The executor that runs the model in the engine's own process: run a plan's forward pass, draw its tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import torch

from kvarn.engine.plan import Row, RowResult, StepPlan, StepResult, SynchronousExecutor
from kvarn.models import Decoder
from kvarn.wire.messages import PositionLogprobs
from kvarn.worker.model_runner import ModelRunner, RunnerOptions
from kvarn.worker.sampler import Sampler, StepTokens
from kvarn.worker.step_batch import StepBatch


class InProcessExecutor(SynchronousExecutor):
    """Executes plans one at a time (`kvarn.engine.plan.Executor`). Not thread-safe. Raises as the runner it makes."""

    def __init__(
        self, model: Decoder, *, runner_type: Callable[..., ModelRunner] = ModelRunner, **options: Unpack[RunnerOptions]
    ) -> None:
        self.runner = runner_type(model, **options)
        self.sampler = Sampler(self.runner.slots, model.kernels.operations)
        self.num_blocks = self.runner.num_blocks
        self.max_context_length = self.runner.max_context_length
        self.adapters = self.runner.adapters
        """The engine's `AdapterStore`."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step to its end; results in the order of its rows. Raises PlanError where the plan contradicts the
        slots' state, InvalidSamplingError where a request asks for what this model cannot do, InvalidLogitsError."""
        started, first_uses = self.runner.clock.now(), self.runner.first_uses
        transfer_s = self.runner.transfer_blocks(plan)
        rows = self._run(plan)
        elapsed_s, warming = self.runner.clock.now() - started, self.runner.first_uses != first_uses
        return StepResult(plan.step, rows, elapsed_s, transfer_s, warming)

    @torch.inference_mode()
    def _run(self, plan: StepPlan) -> list[RowResult]:
        runner, sampler = self.runner, self.sampler
        runner.apply(plan)
        if not plan.rows:
            return []
        step = runner.run(plan.rows)
        prompt_logprobs = sampler.prompt_logprobs(step.batch.prompt_spans, runner.prompt_logits(step))
        runner.slots.record_forced(plan.rows)
        drawn = sampler.draw(step.batch, step.logits, plan.masks)
        if runner.eagle is not None and step.hidden_states is not None:
            tables = runner.slots.block_tables
            runner.eagle.process_step(plan.rows, step.batch, drawn.tokens, step.hidden_states, tables)
        return _results(plan, step.batch, drawn, prompt_logprobs)

    def compile_ahead(self, token_budget: int, threads: int) -> None:
        self.runner.compile_ahead(token_budget, threads)

    def shutdown(self) -> None:
        self.runner.shutdown()


def _results(
    plan: StepPlan, batch: StepBatch, drawn: StepTokens, prompt_logprobs: dict[int, list[PositionLogprobs]]
) -> list[RowResult]:
    tokens, logprobs = drawn
    if len(tokens) == len(plan.rows) and not logprobs and not prompt_logprobs:
        return [RowResult(row.slot, _with_forced(row, own)) for row, own in zip(plan.rows, tokens, strict=True)]
    place_of = {index: place for place, index in enumerate(batch.sampled_rows)}
    results = []
    for index, row in enumerate(plan.rows):
        place = place_of.get(index)
        own = [] if place is None else _with_forced(row, tokens[place])
        entries = None if place is None else logprobs.get(place)
        results.append(RowResult(row.slot, own, entries, prompt_logprobs.get(index)))
    return results


def _with_forced(row: Row, drawn: list[int]) -> list[int]:
    if not row.num_forced:
        return drawn
    first = len(row.token_ids) - row.num_proposals
    return row.token_ids[first : first + row.num_forced] + drawn
