"""Guesses by an EAGLE-3 head, which follows the model: after each step it computes the same tokens, from the hidden
states of the model's layers.

Its keys and values lie in the same blocks as the model's, in a cache of its own with the same numbers, so a prefix hit,
a fork and a return after preemption need nothing of it. Guesses go into spare blocks behind those.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt
import torch

from kvarn.clock import SYSTEM_CLOCK, Clock
from kvarn.engine.plan import BlockCopy, BlockTransfer, NewSequence, Row
from kvarn.engine.proposals.proposer import IDLE_AFTER, NO_GUESS, Guess, Proposer
from kvarn.engine.request import Sequence
from kvarn.kernels.batch import PagedBatch
from kvarn.models.decoder import HiddenStates
from kvarn.models.eagle import EagleHead
from kvarn.shapes import BLOCK_SIZE
from kvarn.worker.kv_blocks import copy_blocks
from kvarn.worker.proposers.pass_times import PassTimes
from kvarn.worker.step_batch import StepBatch

Ints = npt.NDArray[np.int64]


class EagleProposer(Proposer):
    """Implements `Proposer`. The executor passes each step to it (`hidden_states`, `process_step`). Not thread-safe."""

    grades: tuple[float, ...] = (0.7,)
    is_free: bool = False
    call_s: float = 200e-6
    """Estimate for copying blocks and making tables."""

    LENGTH = BLOCK_SIZE
    """Most tokens guessed: two blocks always hold them."""

    def __init__(self, head: EagleHead, *, num_blocks: int, max_num_seqs: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._head = head
        self._num_blocks = num_blocks
        self._cache = head.new_kv_cache(num_blocks + 2 * max_num_seqs)
        self._device = head.kernels.device.torch_device
        self._entered: dict[int, NewSequence] = {}  # sequences by slot
        self._followed: dict[int, tuple[int, torch.Tensor]] = {}
        """Tokens known after the last step of a slot, and the head's output for the last but one of them."""
        self._tables = np.zeros((max_num_seqs, 0), dtype=np.int32)
        self._times = PassTimes()
        self.overhead_s = 0.0
        """Decaying average of the seconds to follow a step."""
        self._unasked = 0
        """Steps followed since guesses were last requested."""

    # Called by the executor -----------------------------------------------------------------------------------------

    def hidden_states(self) -> HiddenStates | None:
        """Hidden states for the forward pass to keep for `process_step`; None while no guesses are requested.
        Sequences that were not followed from their beginning get no guesses later."""
        self._unasked += 1
        if self._unasked > IDLE_AFTER:
            self._entered.clear()
            self._followed.clear()
            return None
        return HiddenStates(self._head.aux_layers)

    def admit(self, new: NewSequence) -> None:
        self._followed.pop(new.slot, None)
        self._entered[new.slot] = new

    def move_blocks(self, loads: Items[BlockTransfer], copies: Items[BlockCopy]) -> None:
        """Clear the blocks that were loaded into the model's cache, since the head's own are not stored; then copy
        blocks as in the model's cache."""
        for tensor in (*self._cache.keys, *self._cache.values):
            for transfer in loads:
                tensor[transfer.block].zero_()
        if copies:
            copy_blocks(self._cache, copies)

    def process_step(
        self,
        rows: Items[Row],
        batch: StepBatch,
        drawn: Items[Items[int]],
        hidden_states: HiddenStates,
        tables: npt.NDArray[np.int32],
    ) -> None:
        """Compute the tokens of a step whose outcome is known: `drawn` has those of each of `batch.sampled_rows`.
        `tables`, the executor's block tables by slot, are kept for `propose`."""
        began = self._clock.now()
        self._tables = tables
        following, ends = self._following(rows, batch, drawn)
        hidden = self._head.read(hidden_states.joined())
        assert hidden_states.batch is not None, "the forward pass has run"
        hidden = self._head.forward(
            hidden, torch.from_numpy(following).to(self._device), hidden_states.batch, self._cache
        )
        for index, end in ends:
            row = rows[index]
            first = int(batch.query_starts[index])
            if row.slot in self._entered:
                self._followed[row.slot] = (row.start + end - first + 2, hidden[end].clone())
        self.overhead_s += 0.05 * (self._clock.now() - began - self.overhead_s)

    def _following(
        self, rows: Items[Row], batch: StepBatch, drawn: Items[Items[int]]
    ) -> tuple[Ints, list[tuple[int, int]]]:
        """The token after each one of the step, and for each sampled row its place in the plan and, in the step, that
        of its last token that is right."""
        following = np.roll(batch.token_ids, -1)
        starts = batch.query_starts.tolist()
        tokens_of = dict(zip(batch.sampled_rows, drawn, strict=True))
        ends: list[tuple[int, int]] = []
        for index, row in enumerate(rows):
            last = starts[index + 1] - 1
            tokens = tokens_of.get(index)
            if tokens:
                first = last - (row.num_proposals - row.num_forced)
                following[first : first + len(tokens)] = tokens
                ends.append((index, first + len(tokens) - 1))
            else:
                entered = self._entered.get(row.slot)
                following[last] = 0 if entered is None else _known_token(entered, row.start + len(row.token_ids))
        return following, ends

    # Called by the engine --------------------------------------------------------------------------------------------

    def seconds(self, num_sequences: int) -> float:
        return self._times.expected(num_sequences)

    def propose(self, wanted: Items[tuple[Sequence, int]]) -> list[Guess]:
        self._unasked = 0
        guesses = [NO_GUESS] * len(wanted)
        rows = [index for index, (sequence, limit) in enumerate(wanted) if limit and self._is_followed(sequence)]
        if not rows:
            return guesses
        rows.sort(key=lambda index: -wanted[index][1])
        lengths = [min(wanted[index][1], self.LENGTH) for index in rows]
        sequences = [wanted[index][0] for index in rows]
        hidden = torch.stack([self._followed[sequence.slot or 0][1] for sequence in sequences])
        known = np.array([len(sequence.tokens) for sequence in sequences])
        tables = self._spare_tables([sequence.slot or 0 for sequence in sequences], known)
        guessed = [[token] for token in self._head.guess(hidden).tolist()]
        for depth in range(1, lengths[0]):
            began = self._clock.now()
            active = sum(1 for length in lengths if length > depth)
            tokens = torch.tensor([tokens[-1] for tokens in guessed[:active]], device=self._device)
            batch = self._batch(known[:active] - 2 + depth, tables[:active])
            hidden = self._head.forward(hidden[:active].clone(), tokens, batch, self._cache)
            for own, token in zip(guessed, self._head.guess(hidden).tolist(), strict=False):
                own.append(token)
            self._times.observe(active, self._clock.now() - began)
        for index, own in zip(rows, guessed, strict=True):
            guesses[index] = Guess(own)
        return guesses

    def warm_up(self) -> None:
        token = torch.zeros(1, dtype=torch.int64, device=self._device)
        batch = self._batch(np.zeros(1, dtype=np.int64), np.full((1, 1), self._num_blocks, dtype=np.int32))
        times: list[float] = []
        for _ in range(8):
            began = self._clock.now()
            hidden = self._head.forward(self._head.zero_hidden(), token, batch, self._cache)
            self._head.guess(hidden)
            times.append(self._clock.now() - began)
        self._times.observe(1, min(times))

    def _is_followed(self, sequence: Sequence) -> bool:
        slot = sequence.slot
        if slot is None or slot not in self._followed or self._followed[slot][0] != len(sequence.tokens):
            return False
        entered = self._entered[slot]  # the slot may be another's by now, of which the executor has not been told
        return entered.prompt_token_ids is sequence.request.prompt and entered.seed == sequence.seed

    def _spare_tables(self, slots: list[int], known: Ints) -> npt.NDArray[np.int32]:
        """Block tables for guessing on: from the block of the last known token on, two spare ones, of which the first
        begins as a copy of that block."""
        first = (known - 1) // BLOCK_SIZE
        tables = np.zeros((len(slots), int(first.max()) + 2), dtype=np.int32)
        copies: list[BlockCopy] = []
        for row, (slot, begin) in enumerate(zip(slots, first.tolist(), strict=True)):
            tables[row, :begin] = self._tables[slot, :begin]
            spare = self._num_blocks + 2 * row
            tables[row, begin : begin + 2] = spare, spare + 1
            if (known[row] - 1) % BLOCK_SIZE:
                copies.append(BlockCopy(int(self._tables[slot, begin]), spare))
        if copies:
            copy_blocks(self._cache, copies)
        return tables

    def _batch(self, positions: Ints, tables: npt.NDArray[np.int32]) -> PagedBatch:
        return PagedBatch.of(positions, np.arange(len(positions) + 1), tables, self._device)


def _known_token(entered: NewSequence, position: int) -> int:
    """Token at a position of the prompt, or of the output before a preemption; 0 behind them."""
    prompt, outputs = entered.prompt_token_ids, entered.output_token_ids
    if position < len(prompt):
        return prompt[position]
    return outputs[position - len(prompt)] if position < len(prompt) + len(outputs) else 0
