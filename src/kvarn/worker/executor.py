"""The executor that runs the model in the engine's own process: apply a plan to the slots, run the model once, draw
tokens."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
import torch

from kvarn.engine.plan import KVConnector, RowResult, StepPlan, StepResult, SynchronousExecutor
from kvarn.models import Decoder
from kvarn.wire.messages import PositionLogprobs
from kvarn.worker.errors import ContextTooLongError, PlanError
from kvarn.worker.inputs import PromptSpan, StepInputs, build_inputs
from kvarn.worker.kv_blocks import copy_blocks, load_blocks, store_blocks
from kvarn.worker.logprobs import position_logprobs
from kvarn.worker.sampler import Sampled, check_finite, sample
from kvarn.worker.slots import SlotTable


class InProcessExecutor(SynchronousExecutor):
    """A decoder with its KV cache and its slots, driven by plans (`kvarn.engine.plan.Executor`). Not thread-safe.

    Args:
        model: The loaded decoder.
        num_blocks: Blocks of the KV cache; see `plan_kv_blocks`.
        max_num_seqs: Slots: plans name them 0 to `max_num_seqs - 1`.
        max_context_length: Tokens of the longest sequence; default: the model's own limit.
        connector: Where plans store KV blocks beyond the cache; the engine must have the same.

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
        connector: KVConnector | None = None,
    ) -> None:
        limit = model.spec.max_context_length
        if max_context_length is not None and max_context_length > limit:
            raise ContextTooLongError(
                f"max_context_length is {max_context_length}, but the model was trained for {limit} tokens: lower it"
            )
        self.num_blocks = num_blocks
        self.max_context_length = limit if max_context_length is None else max_context_length
        self._model = model
        self._cache = model.new_kv_cache(num_blocks)
        self._connector = connector
        self._device = model.kernels.device
        self._slots = SlotTable(max_num_seqs, self.max_context_length, model.spec.vocab_size, model.adapters)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step to its end; results in the order of its rows.

        Raises:
            PlanError: The plan contradicts the slots' state.
            InvalidSamplingError: An admitted request asks for what this model cannot do.
            InvalidLogitsError: The model's logits are not finite.
        """
        started = time.perf_counter()
        rows = self._run(plan)
        return StepResult(plan.step, rows, time.perf_counter() - started)

    def shutdown(self) -> None:
        """Nothing is held that outlives the process."""

    @torch.inference_mode()
    def _run(self, plan: StepPlan) -> list[RowResult]:
        for slot in plan.releases:
            self._slots.release(slot)
        for sequence in plan.new_sequences:
            self._slots.admit(sequence)
        if plan.kv_stores or plan.kv_loads:
            self._transfer_blocks(plan)
        copy_blocks(self._cache, plan.copies)
        if not plan.rows:
            return []
        self._slots.update_blocks(plan.rows)
        inputs = build_inputs(plan.rows, self._slots, self._device)
        logits = self._model.forward(inputs.token_ids, inputs.batch, self._cache, inputs.logits_rows)
        prompt_logprobs = self._prompt_logprobs(logits, inputs)
        drawn, logprobs = self._draw(logits, inputs, plan.masks)
        return _results(plan, inputs, drawn, logprobs, prompt_logprobs)

    def _transfer_blocks(self, plan: StepPlan) -> None:
        if self._connector is None:
            raise PlanError("the plan stores or loads KV blocks, but this executor has no KV connector: give it one")
        store_blocks(self._cache, plan.kv_stores, self._connector)
        load_blocks(self._cache, plan.kv_loads, self._connector)

    def _draw(
        self, logits: torch.Tensor, inputs: StepInputs, masks: dict[int, tuple[bytes, ...]]
    ) -> tuple[list[list[int]], dict[int, list[PositionLogprobs]]]:
        """Draw one token for each sampled row, and one more as long as what was drawn is what was proposed.

        Each position is drawn as if there were no proposals, so they change no token. Returns, by place among the
        sampled rows, the tokens and (where asked for) their log-probabilities.
        """
        slots = inputs.sampled_slots
        sampled = self._sample(logits[: len(slots)], slots, masks, 0)
        tokens = sampled.token_ids[:, None].tolist()
        logprobs = {place: [entry] for place, entry in sampled.logprobs.items()}
        spans, position = inputs.proposal_spans, 0
        while spans := [span for span in spans if span.token_ids[position : position + 1] == tokens[span.place][-1:]]:
            rows = torch.tensor([span.first + position for span in spans], device=logits.device)
            position += 1
            sampled = self._sample(logits[rows], slots[[span.place for span in spans]], masks, position)
            for row, (span, token) in enumerate(zip(spans, sampled.token_ids.tolist(), strict=True)):
                tokens[span.place].append(token)
                if row in sampled.logprobs:
                    logprobs[span.place].append(sampled.logprobs[row])
        return tokens, logprobs

    def _sample(
        self, logits: torch.Tensor, slots: npt.NDArray[np.int64], masks: dict[int, tuple[bytes, ...]], position: int
    ) -> Sampled:
        """Draw the token that follows `position` proposals for each of these slots, and remember it."""
        masked: dict[int, bytes] = {}
        if masks:
            masked = {row: masks[slot][position] for row, slot in enumerate(slots.tolist()) if slot in masks}
        sampled = sample(logits, slots, self._slots, self._model.kernels, masked)
        self._slots.record(slots, sampled.token_ids)
        return sampled

    def _prompt_logprobs(self, logits: torch.Tensor, inputs: StepInputs) -> dict[int, list[PositionLogprobs]]:
        return {span.row: self._span_logprobs(logits, span) for span in inputs.prompt_spans}

    def _span_logprobs(self, logits: torch.Tensor, span: PromptSpan) -> list[PositionLogprobs]:
        count = len(span.next_token_ids)
        if count == 0:
            return []
        own = logits[span.first : span.first + count]
        check_finite(self._model.kernels.most_likely(own)[1], np.full(count, span.slot))
        following = torch.tensor(span.next_token_ids, dtype=torch.int64, device=logits.device)
        return position_logprobs(own, following, [span.num_top] * count)


def _results(
    plan: StepPlan,
    inputs: StepInputs,
    drawn: list[list[int]],
    logprobs: dict[int, list[PositionLogprobs]],
    prompt_logprobs: dict[int, list[PositionLogprobs]],
) -> list[RowResult]:
    if len(drawn) == len(plan.rows) and not logprobs and not prompt_logprobs:
        return [RowResult(row.slot, tokens) for row, tokens in zip(plan.rows, drawn, strict=True)]
    drawn_by_row = dict(zip(inputs.sampled_rows, drawn, strict=True))
    logprobs_by_row = {inputs.sampled_rows[place]: entries for place, entries in logprobs.items()}
    return [
        RowResult(row.slot, drawn_by_row.get(index, []), logprobs_by_row.get(index), prompt_logprobs.get(index))
        for index, row in enumerate(plan.rows)
    ]
