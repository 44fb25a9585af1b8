"""The executor of a device that computes beside the host: one step runs while the next is planned and sent.

    host    plan 1 | send 1 | plan 2 | send 2 | plan 3 | take 1, send 3 ...
    device                  | step 1          | step 2          | step 3

Steps whose tokens are drawn on the device from what the host knows beforehand run ahead: the host sends their inputs,
the device computes, draws, and keeps the tokens for the next step. The others (with masks, penalties, proposals or
log-probabilities) wait for the steps before them, and their tokens are drawn as by `InProcessExecutor`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Unpack

import numpy as np
import torch

from kvarn.engine.errors import ProtocolError
from kvarn.engine.plan import RowResult, StepPlan, StepResult
from kvarn.kernels.batch import PagedBatch
from kvarn.kernels.device.staging import Fetched
from kvarn.models import Decoder
from kvarn.worker.constraints import needs_constraints
from kvarn.worker.errors import InvalidLogitsError
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.graph_runner import IN_FLIGHT, GraphRunner
from kvarn.worker.model_runner import RunnerOptions
from kvarn.worker.slots import NO_LOGPROBS
from kvarn.worker.step_batch import Ints, filled


def _no_slots() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class _Running:
    plan: StepPlan
    submitted: float
    first_uses: int  # count when it was submitted
    transfer_s: float = 0.0
    slots: Ints = field(default_factory=_no_slots)  # slots of the rows that draw
    admissions: Ints = field(default_factory=_no_slots)  # number of sequences that each of them had had
    fetched: Fetched | None = None
    result: StepResult | None = None


class AsyncExecutor(InProcessExecutor):
    """See `kvarn.engine.plan.Executor`. `fill_up`: see `GraphRunner`."""

    runner: GraphRunner

    def __init__(self, model: Decoder, *, fill_up: bool | None = None, **options: Unpack[RunnerOptions]) -> None:
        super().__init__(model, runner_type=partial(GraphRunner, fill_up=fill_up), **options)
        max_num_seqs = options["max_num_seqs"]
        self._running: deque[_Running] = deque()
        self._ended = 0.0
        self._admissions = np.zeros(max_num_seqs, dtype=np.int64)
        self._drawn = torch.zeros(max_num_seqs + 1, dtype=torch.int64, device=self.runner.device)
        """The token that each slot drew last; the last entry is for rows that fill a batch up."""

    @property
    def max_in_flight(self) -> int:
        return IN_FLIGHT

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> None:
        if self.runs_ahead(plan):
            self.submit_ahead(plan)
            return
        started, first_uses = self.runner.clock.now(), self.runner.first_uses
        self.wait_for_steps(plan)
        result = self.execute(plan)
        self.send_last_tokens()
        self._running.append(_Running(plan, started, first_uses, result=result))

    def collect(self) -> StepResult:
        if not self._running:
            raise ProtocolError("no plan was submitted: there is no result to collect")
        return self._end(self._running.popleft())

    @property
    def num_in_flight(self) -> int:
        return len(self._running)

    def runs_ahead(self, plan: StepPlan) -> bool:
        """Whether a step's tokens can be drawn without knowing those of the step before."""
        if plan.masks or self.runner.eagle is not None:
            return False
        if any(row.num_proposals or row.prompt_logprobs for row in plan.rows):
            return False
        new = {sequence.slot: sequence.sampling for sequence in plan.new_sequences}
        if any(needs_constraints(sampling) or sampling.logprobs is not None for sampling in new.values()):
            return False
        slots, old = self.runner.slots, [row.slot for row in plan.rows if row.slot not in new]
        return not any(slot in slots.constraints for slot in old) and not (slots.num_logprobs[old] != NO_LOGPROBS).any()

    @torch.inference_mode()
    def submit_ahead(self, plan: StepPlan) -> None:
        started, first_uses = self.runner.clock.now(), self.runner.first_uses
        self._count_admissions(plan)
        running = _Running(plan, started, first_uses, self.transfer_blocks(plan))
        self.runner.apply(plan)
        if plan.rows:
            self._start(running)
        self._running.append(running)

    def transfer_blocks(self, plan: StepPlan) -> float:
        if not plan.kv_stores and not plan.kv_loads:
            return 0.0
        self._end_all()
        return self.runner.transfer_blocks(plan)

    def wait_for_steps(self, plan: StepPlan) -> None:
        self._count_admissions(plan)
        self._end_all()

    def drop_results(self) -> None:
        self._running.clear()

    @property
    def last_host_result(self) -> StepResult | None:
        """Result of the plan submitted last, if the host drew its tokens."""
        return self._running[-1].result if self._running else None

    @torch.inference_mode()
    def send_last_tokens(self) -> None:
        self._drawn[:-1].copy_(torch.from_numpy(self.runner.slots.last_token))

    def _count_admissions(self, plan: StepPlan) -> None:
        for sequence in plan.new_sequences:
            self._admissions[sequence.slot] += 1

    def _start(self, running: _Running) -> None:
        runner, sampler, drawn = self.runner, self.sampler, self._drawn
        batch = runner.prepare(running.plan.rows, knows_tokens=False)
        slots, spare = batch.sampled_slots, len(drawn) - 1
        token_slots = batch.row_slots[batch.row_of_token]
        places = (
            filled(token_slots, len(batch.token_ids) - len(token_slots), spare),
            filled(slots, len(batch.logits_rows) - len(slots), spare),
        )
        columns = sampler.columns_for_device(slots, len(batch.logits_rows))

        def compute(
            token_ids: torch.Tensor, paged: PagedBatch, logits_rows: torch.Tensor, others: list[torch.Tensor]
        ) -> tuple[torch.Tensor, ...]:
            token_slots, drawing_slots, *sent_columns = others
            token_ids = torch.where(token_ids < 0, drawn[token_slots], token_ids)
            logits = runner.model.forward(token_ids, paged, runner.cache, logits_rows, None)
            tokens, maxima = sampler.draw_on_device(logits, sent_columns)
            drawn.index_copy_(0, drawing_slots, tokens)
            return tokens, maxima

        tokens, maxima = runner.launch("drawn" if columns else "greedy", batch, (*places, *columns), compute)
        running.slots, running.admissions = slots, self._admissions[slots]
        running.fetched = Fetched.start([tokens[: len(slots)], maxima[: len(slots)]])
        runner.slots.num_output[slots] += 1

    def _end_all(self) -> None:
        for running in self._running:
            self._end(running)

    def _end(self, running: _Running) -> StepResult:
        if running.result is None:
            tokens, maxima = running.fetched.wait() if running.fetched is not None else (running.slots, running.slots)
            for slot, value in zip(running.slots.tolist(), maxima.tolist(), strict=True):
                if not np.isfinite(value):
                    raise InvalidLogitsError(slot)
            same = self._admissions[running.slots] == running.admissions
            self.runner.slots.last_token[running.slots[same]] = tokens[same]
            drawn = iter(tokens.tolist())
            rows = [RowResult(row.slot, [next(drawn)] if row.sample else []) for row in running.plan.rows]
            now = self.runner.clock.now()
            # A step that ran while the next was compiled ended later, too.
            warming = self.runner.first_uses != running.first_uses
            elapsed_s = now - max(running.submitted, self._ended)
            running.result = StepResult(running.plan.step, rows, elapsed_s, running.transfer_s, warming)
            self._ended = now
        return running.result
