"""The executor that runs the model in the engine's own process: apply a plan to the slots, run the model once, draw
tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kvarn.clock import SYSTEM_CLOCK
from kvarn.engine.plan import Row, RowMasks, RowResult, StepPlan, StepResult, SynchronousExecutor
from kvarn.models import Decoder
from kvarn.models.decoder import HiddenStates
from kvarn.wire.messages import PositionLogprobs
from kvarn.worker.adapters import AdapterPool
from kvarn.worker.device_step import BatchShape, HostStep, StepArrays, step_arrays
from kvarn.worker.errors import ContextTooLongError, PlanError
from kvarn.worker.kv_blocks import BlockMemory, BlockTransfers, copy_blocks
from kvarn.worker.logprobs import position_logprobs
from kvarn.worker.proposers.eagle import EagleProposer
from kvarn.worker.ranks.context_parallel import ContextParallel
from kvarn.worker.sampler import Sampled, check_finite, sample
from kvarn.worker.slots import BASE_MODEL, SlotTable
from kvarn.worker.states import SlotStates
from kvarn.worker.step_batch import FlatRows, Ints, PromptSpan, StepInputs, build_inputs
from kvarn.worker.step_sizes import MOST_LOGITS, StepSizes, launch_steps


class _Computed(NamedTuple):
    """What a forward pass gives."""

    inputs: StepInputs
    logits: torch.Tensor
    """[drawn rows, vocab_size]"""
    prompt_hidden: torch.Tensor
    """[rows of the prompt spans, hidden], behind the last layer."""
    hidden_states: HiddenStates | None


class InProcessExecutor(SynchronousExecutor):
    """A decoder with its KV cache and its slots, driven by plans (`kvarn.engine.plan.Executor`). Not thread-safe.

    Args:
        model: The loaded decoder.
        num_blocks: Blocks of the KV cache; see `plan_cache`.
        max_num_seqs: Slots: plans name them 0 to `max_num_seqs - 1`.
        max_context_length: Tokens of the longest sequence; default: the model's own limit.
        connector: Where plans store KV blocks beyond the cache; the engine must have the same.
        num_snapshots: Copies of recurrent states that plans may ask for, where the model has such states.
        eagle: A proposer that is told of each step; the engine must have the same.
        context: This rank's place among those that share long prompts.

    Raises:
        ContextTooLongError: `max_context_length` is more than the model was trained for.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        num_blocks: int,
        max_num_seqs: int,
        max_context_length: int | None = None,
        num_snapshots: int = 0,
        connector: BlockMemory | None = None,
        eagle: EagleProposer | None = None,
        context: ContextParallel | None = None,
    ) -> None:
        limit = model.spec.max_context_length
        if max_context_length is not None and max_context_length > limit:
            raise ContextTooLongError(
                f"max_context_length is {max_context_length}, but the model was trained for {limit} tokens: lower it"
            )
        self.num_blocks = num_blocks
        self.max_context_length = limit if max_context_length is None else max_context_length
        self._model = model
        self._cache = model.new_kv_cache(num_blocks, max_num_seqs + num_snapshots)
        recurrent = self._cache.recurrent_states
        self._recurrent_states = None if recurrent is None else SlotStates(recurrent, max_num_seqs)
        self._eagle = eagle
        self._context = context
        self._transfers = None if connector is None else BlockTransfers(self._cache, connector)
        self._device = model.kernels.device.torch_device
        self._largest = 0
        """Tokens of the largest step that is filled up to be repeated."""
        self.adapters = AdapterPool(partial(model.new_adapter_memory, self._cache))
        """What the engine takes as its `AdapterStore`."""
        indices = self.adapters.indices
        self._slots = SlotTable(max_num_seqs, self.max_context_length, model.spec.vocab_size, indices)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step to its end; results in the order of its rows.

        Raises:
            PlanError: The plan contradicts the slots' state.
            InvalidSamplingError: An admitted request asks for what this model cannot do.
            InvalidLogitsError: The model's logits are not finite.
        """
        started, first_uses = SYSTEM_CLOCK.now(), self._first_uses
        transfer_s = self.transfer_blocks(plan) if plan.kv_stores or plan.kv_loads else 0.0
        rows = self._run(plan)
        elapsed_s, warming = SYSTEM_CLOCK.now() - started, self._first_uses != first_uses
        return StepResult(plan.step, rows, elapsed_s, transfer_s, warming)

    def runs_ahead(self, plan: StepPlan) -> bool:
        """Whether a plan's tokens can be drawn without knowing those of the step before; never here."""
        return False

    @torch.inference_mode()
    def follow(self, plan: StepPlan, *, ahead: bool = False) -> None:
        """Run one step, its blocks moved already, as one of several ranks.

        ahead: Draw its tokens too, as every rank does; otherwise rank 0 alone does, and others `learn` them where
        they need them.
        """
        assert not ahead, "rank 0 has an executor of the same kind"
        computed = self._compute(plan)
        for _ in () if computed is None else self._prompt_logits(computed):
            pass  # the ranks compute logits together

    def drawn_here(self) -> list[tuple[int, list[int]]]:
        """Slots and tokens of the plan submitted last, where other ranks must `learn` them; none here."""
        return []

    def learn(self, drawn: Sequence[tuple[int, list[int]]]) -> None:
        """What rank 0 drew: slots, and tokens of each."""
        for slot, tokens in drawn:
            self._slots.record_drawn(slot, tokens)

    def shutdown(self) -> None:
        """Ends the thread that loads adapters, and those that compile."""
        self.adapters.close()
        self._model.kernels.device.stop_compiling()

    def compile_ahead(self, token_budget: int, threads: int) -> None:
        """Begin to compile the kernels of steps of up to `token_budget` tokens, in threads, the first ones first."""
        sizes = StepSizes(len(self._slots.occupied), token_budget, self.max_context_length)
        self._model.kernels.device.compile_ahead(partial(launch_steps, self._model, self._cache, sizes), threads)

    @property
    def _first_uses(self) -> int:
        """Counts what is done once for many steps: see `StepResult.warming`."""
        return self._model.kernels.device.first_uses

    @torch.inference_mode()
    def _run(self, plan: StepPlan) -> list[RowResult]:
        computed = self._compute(plan)
        if computed is None:
            return []
        inputs, logits, _, hidden_states = computed
        prompt_logprobs = self._prompt_logprobs(computed)
        self._slots.record_forced(plan.rows)
        drawn, logprobs = self._draw(logits, inputs, plan.masks)
        if self._eagle is not None and hidden_states is not None:
            self._eagle.follow(plan.rows, inputs, drawn, hidden_states, self._slots.block_tables)
        return _results(plan, inputs, drawn, logprobs, prompt_logprobs)

    def _compute(self, plan: StepPlan) -> _Computed | None:
        """Everything up to the logits from which tokens are drawn; None for a plan without rows."""
        self._apply(plan)
        if not plan.rows:
            return None
        self._slots.update_blocks(plan.rows)
        inputs = build_inputs(plan.rows, self._slots, self._device, self._context)
        hidden_states = None if self._eagle is None else self._eagle.hidden_states()
        step = self._host_step(plan.rows, inputs.flat, inputs.logits_rows)
        hidden = self._last_hidden(step, hidden_states)[: len(inputs.logits_rows)]
        drawn = inputs.num_drawn_rows
        return _Computed(inputs, self._model.logits(hidden[:drawn]), hidden[drawn:], hidden_states)

    def _host_step(self, rows: Sequence[Row], flat: FlatRows, logits_rows: Ints) -> HostStep:
        """What the device is to be sent of the rows of a plan."""
        memory, adapters = None, None
        if self.adapters.indices and (of_rows := self._slots.adapter[flat.row_slots]).max() != BASE_MODEL:
            memory, adapters = self.adapters.memory, of_rows[flat.row_of_token]
        shares_prefix = self._model.reads_shared_prefixes and flat.shares_prefix
        shape = BatchShape.of(flat, len(logits_rows), memory, shares_prefix=shares_prefix, largest=self._largest)
        saves = None if self._recurrent_states is None else self._recurrent_states.saves(rows)
        arrays = step_arrays(flat, logits_rows, shape, adapters, saves)
        return HostStep(arrays, shape, memory, flat.exchange, self._recurrent_states is not None)

    def _last_hidden(self, step: HostStep, hidden_states: HiddenStates | None) -> torch.Tensor:
        """See `Decoder.last_hidden`: of a step, with the tokens that fill it up; good until the next step."""
        there = StepArrays(*(torch.from_numpy(array).to(self._device) for array in step.arrays))
        batch = step.batch(there)
        return self._model.last_hidden(there.token_ids, batch, self._cache, there.logits_rows, hidden_states)

    def _apply(self, plan: StepPlan) -> None:
        """What a plan changes before its rows are computed; blocks were stored and loaded already."""
        for slot in plan.releases:
            self._slots.release(slot)
        for adapter in plan.adapter_drops:
            self.adapters.drop(adapter)
        for sequence in plan.new_sequences:
            self._slots.admit(sequence)
            if self._recurrent_states is not None:
                self._recurrent_states.admit(sequence)
            if self._eagle is not None:
                self._eagle.admit(sequence)
        copy_blocks(self._cache, plan.copies)
        if self._eagle is not None:
            self._eagle.clear_blocks(plan.kv_loads)
            self._eagle.copy_blocks(plan.copies)
        for load in plan.adapter_loads:
            self.adapters.begin(load)

    @torch.inference_mode()
    def transfer_blocks(self, plan: StepPlan) -> float:
        """Store and load, before the plan is run; returns the seconds that took."""
        if self._transfers is None:
            raise PlanError("the plan stores or loads KV blocks, but this executor has no KV connector: give it one")
        started = SYSTEM_CLOCK.now()
        self._transfers.store(plan.kv_stores)
        self._transfers.load(plan.kv_loads)
        return SYSTEM_CLOCK.now() - started

    def _draw(
        self, logits: torch.Tensor, inputs: StepInputs, masks: dict[int, RowMasks]
    ) -> tuple[list[list[int]], dict[int, list[PositionLogprobs]]]:
        """Draw one token for each sampled row, and one more as long as what was drawn is what was proposed.

        Each position is drawn as if there were no proposals, so they change no token. Returns, by place among the
        sampled rows, the tokens and (where asked for) their log-probabilities.
        """
        slots, ahead = inputs.sampled_slots, inputs.drawn_ahead
        if ahead is None:
            sampled = self._sample(logits[: len(slots)], slots, masks)
            self._slots.record(slots, sampled.token_ids)
            tokens = sampled.token_ids[:, None].tolist()
            return tokens, {place: [entry] for place, entry in sampled.logprobs.items()}
        places, positions = ahead
        sampled = self._sample(logits[: len(places)], slots[places], masks, positions)
        drawn = sampled.token_ids.tolist()
        tokens = [[token] for token in drawn[: len(slots)]]
        logprobs = {place: [entry] for place, entry in sampled.logprobs.items() if place < len(slots)}
        for span in inputs.proposal_spans:
            if span.first >= len(places):
                break  # those whose draws change the logits of the next ones
            candidates = drawn[span.first : span.first + len(span.token_ids)]
            for proposal, (row, token) in zip(span.token_ids, enumerate(candidates, span.first), strict=True):
                if tokens[span.place][-1] != proposal:
                    break
                tokens[span.place].append(token)
                if row in sampled.logprobs:
                    logprobs[span.place].append(sampled.logprobs[row])
        for place, slot in enumerate(slots.tolist()):
            self._slots.record_drawn(slot, tokens[place])
        self._draw_one_by_one(logits, inputs, masks, tokens, logprobs)
        return tokens, logprobs

    def _draw_one_by_one(
        self,
        logits: torch.Tensor,
        inputs: StepInputs,
        masks: dict[int, RowMasks],
        tokens: list[list[int]],
        logprobs: dict[int, list[PositionLogprobs]],
    ) -> None:
        """Go on with the rows whose logits depend on the tokens drawn before them, by penalties for example."""
        assert inputs.drawn_ahead is not None
        slots, position = inputs.sampled_slots, 0
        spans = [span for span in inputs.proposal_spans if span.first >= len(inputs.drawn_ahead[0])]
        while spans := [span for span in spans if span.token_ids[position : position + 1] == tokens[span.place][-1:]]:
            rows = torch.tensor([span.first + position for span in spans], device=logits.device)
            position += 1
            own = slots[[span.place for span in spans]]
            ahead = np.full(len(own), position)
            sampled = self._sample(logits[rows], own, masks, ahead, np.zeros_like(ahead))
            self._slots.record(own, sampled.token_ids)
            for row, (span, token) in enumerate(zip(spans, sampled.token_ids.tolist(), strict=True)):
                tokens[span.place].append(token)
                if row in sampled.logprobs:
                    logprobs[span.place].append(sampled.logprobs[row])

    def _sample(
        self,
        logits: torch.Tensor,
        slots: npt.NDArray[np.int64],
        masks: dict[int, RowMasks],
        positions: npt.NDArray[np.int64] | None = None,
        unrecorded: npt.NDArray[np.int64] | None = None,
    ) -> Sampled:
        """Draw a token for each row: of its slot, behind `positions` proposals (none by default).

        `unrecorded`: how many of the tokens before it the slots do not know yet; by default all proposals.
        """
        masked: dict[int, bytes | memoryview] = {}
        if masks:
            ahead = [0] * len(slots) if positions is None else positions.tolist()
            masked = {
                row: mask
                for row, (slot, position) in enumerate(zip(slots.tolist(), ahead, strict=True))
                if slot in masks and _is_needed(mask := masks[slot][position], position)
            }
        unrecorded = positions if unrecorded is None else unrecorded
        return sample(logits, slots, self._slots, self._model.kernels, masked, unrecorded)

    def _prompt_logprobs(self, computed: _Computed) -> dict[int, list[PositionLogprobs]]:
        found: dict[int, list[PositionLogprobs]] = {span.row: [] for span in computed.inputs.prompt_spans}
        for span, following, logits in self._prompt_logits(computed):
            count = len(following)
            check_finite(self._model.kernels.operations.most_likely(logits)[1], np.full(count, span.slot))
            chosen = torch.tensor(following, dtype=torch.int64, device=logits.device)
            found[span.row] += position_logprobs(logits, chosen, [span.num_top] * count)
        return found

    def _prompt_logits(self, computed: _Computed) -> Iterator[tuple[PromptSpan, list[int], torch.Tensor]]:
        """Of some positions after the other: their span, the tokens that follow them, and their logits. Those of a
        whole chunk would take gigabytes."""
        for span in computed.inputs.prompt_spans:
            for first in range(0, len(span.next_token_ids), MOST_LOGITS):
                following = span.next_token_ids[first : first + MOST_LOGITS]
                begin = span.first + first
                yield span, following, self._model.logits(computed.prompt_hidden[begin : begin + len(following)])


def _is_needed(mask: bytes | memoryview, position: int) -> bool:
    """Behind a proposal that is not allowed a mask may be empty: what is drawn there is dropped."""
    return position == 0 or bool(np.frombuffer(mask, dtype=np.uint8).any())


def _results(
    plan: StepPlan,
    inputs: StepInputs,
    drawn: list[list[int]],
    logprobs: dict[int, list[PositionLogprobs]],
    prompt_logprobs: dict[int, list[PositionLogprobs]],
) -> list[RowResult]:
    if len(drawn) == len(plan.rows) and not logprobs and not prompt_logprobs:
        return [RowResult(row.slot, _with_forced(row, tokens)) for row, tokens in zip(plan.rows, drawn, strict=True)]
    sampled = ((index, plan.rows[index], tokens) for index, tokens in zip(inputs.sampled_rows, drawn, strict=True))
    drawn_by_row = {index: _with_forced(row, tokens) for index, row, tokens in sampled}
    logprobs_by_row = {inputs.sampled_rows[place]: entries for place, entries in logprobs.items()}
    return [
        RowResult(row.slot, drawn_by_row.get(index, []), logprobs_by_row.get(index), prompt_logprobs.get(index))
        for index, row in enumerate(plan.rows)
    ]


def _with_forced(row: Row, drawn: list[int]) -> list[int]:
    """What a row drew, after the tokens that it was forced to."""
    if not row.num_forced:
        return drawn
    first = len(row.token_ids) - row.num_proposals
    return row.token_ids[first : first + row.num_forced] + drawn
