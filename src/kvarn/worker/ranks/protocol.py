"""Protocol between rank 0 and the other ranks of a model: its messages, and the part of each rank in a step."""

from __future__ import annotations

import msgspec
import torch

from kvarn.engine.plan import StepPlan
from kvarn.worker.async_executor import AsyncExecutor
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.graph_runner import IN_FLIGHT
from kvarn.worker.ranks.blocks import BlockSlots

DrawnTokens = list[tuple[int, list[int]]]
"""Slots, and the tokens drawn for each."""


class AddAdapter(msgspec.Struct, frozen=True, tag=True):
    """Read an adapter from this directory: plans may load it from now on."""

    adapter: str
    path: str


class ForgetAdapter(msgspec.Struct, frozen=True, tag=True):
    """Forget an adapter: no plan loads it any more."""

    adapter: str


class RunPlan(msgspec.Struct, frozen=True, tag=True):
    plan: StepPlan
    slots: BlockSlots | None = None  # slots of the blocks that it stores and loads; None where it moves none
    ahead: bool = False
    """Every rank draws its tokens."""
    drawn: DrawnTokens = []  # tokens that rank 0 drew in the step before


Message = AddAdapter | ForgetAdapter | RunPlan


class RankProtocol:
    """Part of one rank in the steps of a model. Every rank has the same slots; rank 0 decides how each plan is run.

    Ranks with an `AsyncExecutor` run ahead: each has all logits and draws the same tokens from them, so none waits to
    be sent tokens. Other ranks than 0 draw nothing else; the tokens of such plans are sent with the next one.
    """

    def __init__(self, executor: InProcessExecutor) -> None:
        self._runner = executor.runner
        self._ahead = executor if isinstance(executor, AsyncExecutor) else None

    def runs_ahead(self, plan: StepPlan) -> bool:
        """Whether every rank draws the plan's tokens, without knowing those of the step before."""
        return self._ahead is not None and self._ahead.runs_ahead(plan)

    def drawn_tokens(self) -> DrawnTokens:
        result = None if self._ahead is None else self._ahead.last_host_result
        return [] if result is None else [(row.slot, row.token_ids) for row in result.rows if row.token_ids]

    def receive_tokens(self, drawn: DrawnTokens) -> None:
        for slot, tokens in drawn:
            self._runner.slots.record_drawn(slot, tokens)
        if self._ahead is not None:
            self._ahead.send_last_tokens()

    def transfer_blocks(self, plan: StepPlan) -> None:
        (self._ahead or self._runner).transfer_blocks(plan)

    @torch.inference_mode()
    def run_follower(self, plan: StepPlan, *, ahead: bool) -> None:
        """Run a plan as another rank than 0, its blocks moved already. `ahead`: draw its tokens, too. Raises
        InvalidLogitsError where logits of an earlier step are not finite."""
        if ahead:
            assert self._ahead is not None, "rank 0 has an executor of the same kind"
            while self._ahead.num_in_flight >= IN_FLIGHT:
                self._ahead.collect()
            self._ahead.submit_ahead(plan)
            return
        if self._ahead is not None:
            self._ahead.wait_for_steps(plan)
            self._ahead.drop_results()
        self._runner.apply(plan)
        if plan.rows:
            step = self._runner.run(plan.rows)
            for _ in self._runner.prompt_logits(step):
                pass  # the ranks compute logits together
