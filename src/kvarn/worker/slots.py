"""State of each slot of the executor: block tables and sampling parameters in columns, recurrent states in a cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvarn.engine.plan import NO_SNAPSHOT, NewSequence, Row
from kvarn.kernels.batch import StateCache
from kvarn.shapes import BLOCK_SIZE
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.constraints import TokenConstraints, needs_constraints
from kvarn.worker.errors import PlanError

NO_LOGPROBS = -1
BASE_MODEL = -1
_SMALLEST_TOP_P = 1e-9
"""Replaces `top_p` = 0, which the OpenAI wire allows: the most likely token alone."""
_LARGEST_TEMPERATURE = 1e15
"""Replaces any larger one, which float32 may not hold: all tokens are equally likely."""


class SamplingColumn(NamedTuple):
    """A parameter by which a token is drawn, as the slots hold it."""

    dtype: type[np.generic]
    neutral: float  # value of a row that takes the most likely token
    value: Callable[[SamplingParams, int], float]  # value for a sequence and the size of the vocabulary


SAMPLING_COLUMNS = {
    "temperature": SamplingColumn(np.float32, 1, lambda sampling, _: min(sampling.temperature, _LARGEST_TEMPERATURE)),
    "top_k": SamplingColumn(np.int64, 0, lambda sampling, size: sampling.top_k if sampling.top_k < size else 0),
    "top_p": SamplingColumn(np.float64, 1, lambda sampling, _: max(sampling.top_p, _SMALLEST_TOP_P)),
    "min_p": SamplingColumn(np.float32, 0, lambda sampling, _: sampling.min_p),
}
"""Fields of `SamplingTensors`, by name."""


class SlotTable:
    """State of each running sequence between steps.

    Columns are arrays over slots, so that the parameters of a batch are one gather each. State that only few sequences
    use (constraints, the prompt for its log-probabilities) is in dictionaries by slot.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_context_length: int,
        vocab_size: int,
        adapters: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.adapter_indices = adapters
        self._max_context_length = max_context_length
        self._vocab_size = vocab_size
        max_blocks = -(-max_context_length // BLOCK_SIZE)
        self.block_tables = np.zeros((max_num_seqs, max_blocks), dtype=np.int32)
        self.occupied = np.zeros(max_num_seqs, dtype=np.bool_)
        self.sampling: dict[str, npt.NDArray[Any]] = {
            name: np.zeros(max_num_seqs, dtype=column.dtype) for name, column in SAMPLING_COLUMNS.items()
        }
        """One array for each of `SAMPLING_COLUMNS`, by name."""
        self.temperature = self.sampling["temperature"]
        self.seed = np.zeros(max_num_seqs, dtype=np.uint64)
        self.num_output = np.zeros(max_num_seqs, dtype=np.int64)
        """Number of output tokens so far: the position of the next one drawn."""
        self.last_token = np.zeros(max_num_seqs, dtype=np.int64)
        """The token drawn last, for a plan that was made before it was known."""
        self.adapter = np.full(max_num_seqs, BASE_MODEL, dtype=np.int64)
        """Index in the adapters' memory, `BASE_MODEL` for none."""
        self.num_logprobs = np.full(max_num_seqs, NO_LOGPROBS, dtype=np.int64)
        """Number of most likely tokens to report with each drawn one; `NO_LOGPROBS` for no report."""
        self.constraints: dict[int, TokenConstraints] = {}
        self.prompts: dict[int, tuple[list[int], int]] = {}
        """Prompt and number of most likely tokens to report, of slots that report on their prompt."""

    def release(self, slot: int) -> None:
        self._check(slot, occupied=True)
        self.occupied[slot] = False
        self.constraints.pop(slot, None)
        self.prompts.pop(slot, None)

    def admit(self, new: NewSequence) -> None:
        slot, sampling = new.slot, new.sampling
        self._check(slot, occupied=False)
        if new.adapter and new.adapter not in self.adapter_indices:
            raise PlanError(f"slot {slot}: adapter {new.adapter!r} is not in the blocks: its load has not ended")
        if needs_constraints(sampling):
            self.constraints[slot] = TokenConstraints(new, self._vocab_size)
        if sampling.prompt_logprobs is not None:
            self.prompts[slot] = (new.prompt_token_ids, sampling.prompt_logprobs)
        self.occupied[slot] = True
        self.block_tables[slot] = 0
        for name, column in SAMPLING_COLUMNS.items():
            self.sampling[name][slot] = column.value(sampling, self._vocab_size)
        self.seed[slot] = new.seed
        self.adapter[slot] = self.adapter_indices[new.adapter] if new.adapter else BASE_MODEL
        self.num_output[slot] = len(new.output_token_ids)
        self.num_logprobs[slot] = NO_LOGPROBS if sampling.logprobs is None else sampling.logprobs

    def update_blocks(self, rows: Sequence[Row]) -> None:
        updates = [
            (row.slot, update.index, update.block) for row in rows if row.block_updates for update in row.block_updates
        ]
        if updates:
            slots, indices, blocks = np.array(updates, dtype=np.int64).T
            self.block_tables[slots, indices] = blocks

    def check_rows(self, slots: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
        if not self.occupied[slots].all():
            raise PlanError(f"slots {slots[~self.occupied[slots]].tolist()} have a row but no admitted sequence")
        if ends.max(initial=0) > self._max_context_length:
            raise PlanError(f"a row ends at position {ends.max()}, past the context of {self._max_context_length}")

    def record(self, slots: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> None:
        self.num_output[slots] += 1
        self.last_token[slots] = tokens
        if self.constraints:
            for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
                constraints = self.constraints.get(slot)
                if constraints is not None:
                    constraints.add(token)

    def record_drawn(self, slot: int, tokens: list[int]) -> None:
        self.num_output[slot] += len(tokens)
        self.last_token[slot] = tokens[-1]
        constraints = self.constraints.get(slot)
        if constraints is not None:
            for token in tokens:
                constraints.add(token)

    def record_forced(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.num_forced:
                first = len(row.token_ids) - row.num_proposals
                self.record_drawn(row.slot, row.token_ids[first : first + row.num_forced])

    def _check(self, slot: int, *, occupied: bool) -> None:
        if not 0 <= slot < len(self.occupied):
            raise PlanError(f"slot {slot} is not one of the {len(self.occupied)} slots")
        if bool(self.occupied[slot]) != occupied:
            raise PlanError(f"slot {slot} is {'free' if occupied else 'taken already'}")


class SlotStates:
    """Applies plans to a cache of states: places for `num_slots` slots, then for snapshots."""

    def __init__(self, cache: StateCache, num_slots: int) -> None:
        self._cache = cache
        self._num_slots = num_slots

    def admit(self, new: NewSequence) -> None:
        if new.snapshot == NO_SNAPSHOT:
            self._cache.clear(new.slot)
        else:
            self._cache.copy(self._place(new.snapshot), new.slot)

    def saves(self, rows: Sequence[Row]) -> npt.NDArray[np.int64]:
        saves, end = np.full(sum(len(row.token_ids) for row in rows), -1, dtype=np.int64), 0
        for row in rows:
            for save in row.state_saves:
                saves[end + save.num_tokens - 1] = self._place(save.snapshot)
            end += len(row.token_ids)
        return saves

    def _place(self, snapshot: int) -> int:
        place = self._num_slots + snapshot
        if not self._num_slots <= place < self._cache.num_places:
            raise PlanError(f"snapshot {snapshot} of states is not one of {self._cache.num_places - self._num_slots}")
        return place
