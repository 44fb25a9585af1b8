"""From a plan to logits: the decoder with its KV cache, slots, recurrent states and adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Required, TypedDict, Unpack

import numpy.typing as npt
import torch

from kvarn.clock import SYSTEM_CLOCK, Clock
from kvarn.engine.plan import Row, StepPlan
from kvarn.kernels.batch import PagedBatch
from kvarn.models import Decoder
from kvarn.models.decoder import HiddenStates
from kvarn.worker.adapters import AdapterPool
from kvarn.worker.errors import ContextTooLongError, PlanError
from kvarn.worker.kv_blocks import BlockMemory, BlockTransfers, copy_blocks
from kvarn.worker.proposers.eagle import EagleProposer
from kvarn.worker.ranks.context_parallel import ContextParallel
from kvarn.worker.slots import BASE_MODEL, SlotStates, SlotTable
from kvarn.worker.step_batch import PromptSpan, StepBatch
from kvarn.worker.step_sizes import MAX_LOGITS, StepSizes, launch_steps

Compute = Callable[[torch.Tensor, PagedBatch, torch.Tensor, list[torch.Tensor]], tuple[torch.Tensor, ...]]
"""Computes token ids, a batch, its logits' rows, and other arrays, all on the device."""


class StepLogits(NamedTuple):
    batch: StepBatch
    logits: torch.Tensor
    """[drawn rows, vocab_size]"""
    prompt_hidden: torch.Tensor
    """[rows of the prompt spans, hidden], behind the last layer."""
    hidden_states: HiddenStates | None  # kept for the EAGLE head


class RunnerOptions(TypedDict, total=False):
    num_blocks: Required[int]
    """Blocks of the KV cache; see `plan_cache`."""
    max_num_seqs: Required[int]
    """Slots: plans name them 0 to `max_num_seqs - 1`."""
    max_context_length: int | None
    """Tokens of the longest sequence; default: the model's own limit."""
    num_snapshots: int
    """Copies of recurrent states that plans may ask for, where the model has such states."""
    connector: BlockMemory | None
    """Memory of KV blocks beyond the cache; the engine must have the same."""
    eagle: EagleProposer | None
    """Proposer that processes each step; the engine must have the same."""
    context: ContextParallel | None
    """This rank's place among those that share long prompts."""
    clock: Clock


class ModelRunner:
    """Runs the forward passes of plans, one after the other. Not thread-safe.

    Raises ContextTooLongError where `max_context_length` is more than the model was trained for.
    """

    max_repeated = 0
    """Tokens of the largest step that is filled up to be repeated."""

    def __init__(self, model: Decoder, **options: Unpack[RunnerOptions]) -> None:
        num_blocks, max_num_seqs = options["num_blocks"], options["max_num_seqs"]
        max_context_length, connector = options.get("max_context_length"), options.get("connector")
        limit = model.spec.max_context_length
        if max_context_length is not None and max_context_length > limit:
            raise ContextTooLongError(
                f"max_context_length is {max_context_length}, but the model was trained for {limit} tokens: lower it"
            )
        self.model = model
        self.device = model.kernels.device.torch_device
        self.num_blocks = num_blocks
        self.max_context_length = limit if max_context_length is None else max_context_length
        self.cache = model.new_kv_cache(num_blocks, max_num_seqs + options.get("num_snapshots", 0))
        self.adapters = AdapterPool(partial(model.new_adapter_memory, self.cache))
        self.slots = SlotTable(max_num_seqs, self.max_context_length, model.spec.vocab_size, self.adapters.indices)
        self.eagle = options.get("eagle")
        self.clock = options.get("clock", SYSTEM_CLOCK)
        recurrent = self.cache.recurrent_states
        self._states = None if recurrent is None else SlotStates(recurrent, max_num_seqs)
        self._context = options.get("context")
        self._transfers = None if connector is None else BlockTransfers(self.cache, connector)
        self._reads_shared_prefixes = model.reads_shared_prefixes

    @property
    def first_uses(self) -> int:
        return self.model.kernels.device.first_uses

    def compile_ahead(self, token_budget: int, threads: int) -> None:
        """Begin to compile the kernels of steps of up to `token_budget` tokens, in threads, the first ones first."""
        sizes = StepSizes(len(self.slots.occupied), token_budget, self.max_context_length)
        self.model.kernels.device.compile_ahead(partial(launch_steps, self.model, self.cache, sizes), threads)

    def shutdown(self) -> None:
        self.adapters.close()
        self.model.kernels.device.stop_compiling()

    @torch.inference_mode()
    def transfer_blocks(self, plan: StepPlan) -> float:
        """Store and load a plan's KV blocks. Returns the seconds it took."""
        if not plan.kv_stores and not plan.kv_loads:
            return 0.0
        if self._transfers is None:
            raise PlanError("the plan stores or loads KV blocks, but this executor has no KV connector: give it one")
        started = self.clock.now()
        self._transfers.store(plan.kv_stores)
        self._transfers.load(plan.kv_loads)
        return self.clock.now() - started

    def apply(self, plan: StepPlan) -> None:
        for slot in plan.releases:
            self.slots.release(slot)
        for adapter in plan.adapter_drops:
            self.adapters.drop(adapter)
        for sequence in plan.new_sequences:
            self.slots.admit(sequence)
            if self._states is not None:
                self._states.admit(sequence)
            if self.eagle is not None:
                self.eagle.admit(sequence)
        if plan.copies:
            copy_blocks(self.cache, plan.copies)
        if self.eagle is not None:
            self.eagle.move_blocks(plan.kv_loads, plan.copies)
        for load in plan.adapter_loads:
            self.adapters.begin(load)

    def prepare(self, rows: Sequence[Row], *, knows_tokens: bool = True) -> StepBatch:
        """The rows of a plan as the device is sent them. Raises PlanError where they contradict the slots.

        `knows_tokens`: the tokens drawn last are in the slots, not on the device alone.
        """
        slots, context = self.slots, self._context
        slots.update_blocks(rows)
        batch = StepBatch.of(rows, slots)
        if context is not None:
            batch = context.divide(rows, batch, self.device)
        if knows_tokens:
            batch.take_last_tokens(slots)
        if context is None or not context.rank:  # rank 0 alone needs logits
            batch.choose_logits(rows, slots)
        if self.adapters.indices and (of_rows := slots.adapter[batch.row_slots]).max() != BASE_MODEL:
            batch.adapter_memory, batch.adapters = self.adapters.memory, of_rows[batch.row_of_token]
        if self._states is not None:
            batch.state_places, batch.state_saves = batch.row_slots, self._states.saves(rows)
        batch.shares_prefix = self._reads_shared_prefixes and batch.has_shared_prefix
        batch.fill_up(self.max_repeated)
        return batch

    def run(self, rows: Sequence[Row]) -> StepLogits:
        batch = self.prepare(rows)
        hidden_states = None if self.eagle is None else self.eagle.hidden_states()
        hidden = self.last_hidden(batch, hidden_states)[: batch.num_logits]
        drawn = batch.num_drawn
        return StepLogits(batch, self.model.logits(hidden[:drawn]), hidden[drawn:], hidden_states)

    def prompt_logits(self, step: StepLogits) -> Iterator[tuple[PromptSpan, list[int], torch.Tensor]]:
        """Positions of the prompt spans, some at a time (a whole chunk's logits take gigabytes): span, following
        tokens, logits."""
        for span in step.batch.prompt_spans:
            for first in range(0, len(span.next_token_ids), MAX_LOGITS):
                following = span.next_token_ids[first : first + MAX_LOGITS]
                begin = span.first + first
                yield span, following, self.model.logits(step.prompt_hidden[begin : begin + len(following)])

    def last_hidden(self, batch: StepBatch, hidden_states: HiddenStates | None) -> torch.Tensor:
        """Last hidden states [R, hidden], padding rows included; valid until the next step."""

        def compute(
            token_ids: torch.Tensor, paged: PagedBatch, logits_rows: torch.Tensor, _: list[torch.Tensor]
        ) -> tuple[torch.Tensor, ...]:
            return (self.model.last_hidden(token_ids, paged, self.cache, logits_rows, hidden_states),)

        return self.launch("hidden", batch, (), compute)[0]

    def launch(
        self, kind: str, batch: StepBatch, others: Sequence[npt.NDArray[Any]], compute: Compute
    ) -> tuple[torch.Tensor, ...]:
        tensors = [torch.from_numpy(array).to(self.device) for array in (*batch.arrays, *others)]
        count = len(tensors) - len(others)
        return compute(*batch.on_device(tensors[:count]), tensors[count:])
