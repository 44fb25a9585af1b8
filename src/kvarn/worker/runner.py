"""One step on one device: apply a plan to the slots, run the model once, draw tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kvarn.engine.plan import BlockCopy, RowResult, StepPlan
from kvarn.kernels.batch import KVCache
from kvarn.models import Decoder
from kvarn.wire.messages import PositionLogprobs
from kvarn.worker.inputs import PromptSpan, StepInputs, build_inputs
from kvarn.worker.logprobs import position_logprobs
from kvarn.worker.sampler import Sampled, check_finite, sample
from kvarn.worker.slots import SlotTable


class ModelRunner:
    """A decoder with its KV cache and its slots. Not thread-safe: one step at a time."""

    def __init__(self, model: Decoder, *, num_blocks: int, max_num_seqs: int, max_context_length: int) -> None:
        self._model = model
        self._cache = model.new_kv_cache(num_blocks)
        self._device = model.kernels.device
        self._slots = SlotTable(max_num_seqs, max_context_length, model.spec.vocab_size)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[RowResult]:
        """Carry out a plan; results in the order of its rows.

        Raises:
            PlanError: The plan contradicts the slots' state.
            InvalidSamplingError: An admitted request asks for what this model cannot do.
            InvalidLogitsError: The model's logits are not finite.
        """
        for slot in plan.releases:
            self._slots.release(slot)
        for admission in plan.admissions:
            self._slots.admit(admission)
        copy_blocks(self._cache, plan.copies)
        if not plan.rows:
            return []
        self._slots.update_blocks(plan.rows)
        inputs = build_inputs(plan.rows, self._slots, self._device)
        logits = self._model.forward(inputs.token_ids, inputs.batch, self._cache, inputs.logits_rows)
        prompt_logprobs = self._prompt_logprobs(logits, inputs)
        sampled = sample(logits[: len(inputs.sampled_rows)], inputs.sampled_slots, self._slots, self._model.kernels)
        self._slots.record(inputs.sampled_slots, sampled.token_ids)
        return _results(plan, inputs, sampled, prompt_logprobs)

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


def copy_blocks(cache: KVCache, copies: Sequence[BlockCopy]) -> None:
    """Copy whole blocks in every layer: all sources are read before any target is written."""
    if not copies:
        return
    sources, targets = torch.tensor([[copy.source, copy.target] for copy in copies], device=cache.keys[0].device).T
    for tensor in (*cache.keys, *cache.values):
        tensor.index_copy_(0, targets, tensor.index_select(0, sources))


def _results(
    plan: StepPlan, inputs: StepInputs, sampled: Sampled, prompt_logprobs: dict[int, list[PositionLogprobs]]
) -> list[RowResult]:
    tokens = sampled.token_ids[:, None].tolist()
    if len(tokens) == len(plan.rows) and not sampled.logprobs and not prompt_logprobs:
        return [RowResult(row.slot, drawn) for row, drawn in zip(plan.rows, tokens, strict=True)]
    drawn_by_row = dict(zip(inputs.sampled_rows, tokens, strict=True))
    logprobs = {inputs.sampled_rows[place]: [entry] for place, entry in sampled.logprobs.items()}
    return [
        RowResult(row.slot, drawn_by_row.get(index, []), logprobs.get(index), prompt_logprobs.get(index))
        for index, row in enumerate(plan.rows)
    ]
