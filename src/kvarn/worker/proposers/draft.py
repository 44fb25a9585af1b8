"""A small model that guesses the tokens of the large one (Leviathan et al. 2023, Chen et al. 2023), greedily.

It has a KV cache of its own. A guess first computes the tokens that the sequence has got since the last one (a prompt
in parts, over several steps), and goes on token by token, all sequences together. When the cache is full, the least
recently used sequence is forgotten, and computed again when needed.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from kvarn.clock import SYSTEM_CLOCK, Clock
from kvarn.engine.proposals.proposer import NO_GUESS, Guess, Proposer
from kvarn.engine.request import Sequence
from kvarn.kernels.batch import PagedBatch
from kvarn.models import Decoder
from kvarn.shapes import BLOCK_SIZE
from kvarn.worker.proposers.pass_times import PassTimes

Ints = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class _Draft:
    table: npt.NDArray[np.int32]  # its blocks, as far as it has some
    num_blocks: int = 0
    num_computed: int = 0  # known tokens in the cache
    guess: list[int] = field(default_factory=list)  # guessed tokens that are in the cache behind those

    def settle(self, tokens: list[int]) -> None:
        for guessed, token in zip(self.guess, tokens[self.num_computed :], strict=False):
            if guessed != token:
                break
            self.num_computed += 1
        self.guess = []
        self.num_computed = min(self.num_computed, len(tokens) - 1)


@dataclass(slots=True)
class _Row:
    index: int
    draft: _Draft
    tokens: list[int]  # known tokens to compute now
    length: int  # tokens to guess; 0 if known tokens remain after that


class DraftProposer(Proposer):
    """See `kvarn.engine.proposals.proposer.Proposer`. Not thread-safe. The draft model's tokens are those of the
    large one; tokens beyond the large model's `vocab_size` are not guessed."""

    grades: tuple[float, ...] = (0.7,)
    is_free: bool = False

    CATCH_UP = 256
    """Known tokens computed in one call, beyond the first few of each sequence."""
    FEW = 16
    """Known tokens of a sequence that are always computed at once: about as many as a verification brings."""
    WARM_CALLS = 8
    WARM_TOKENS = 8
    PREPARE_S = 40e-6
    """Estimate for a guess beside its tensors and passes."""

    def __init__(self, model: Decoder, *, num_blocks: int, vocab_size: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._model = model
        self._vocab_size = min(vocab_size, model.spec.vocab_size)
        self._cache = model.new_kv_cache(num_blocks)
        self._free = list(range(num_blocks - 1, -1, -1))
        self._drafts: OrderedDict[Sequence, _Draft] = OrderedDict()  # least recently used first
        self._table_size = min(num_blocks, -(-model.spec.max_context_length // BLOCK_SIZE))
        self._device = model.kernels.device.torch_device
        self._times = PassTimes()
        self.call_s = 0.0
        self._passes = model.greedy_passes(self._cache)
        """None: one call a pass."""

    def warm_up(self) -> None:
        row = np.zeros(1, dtype=np.int64)
        batch = self._batch(row, np.array([0, 1]), np.zeros((1, 1), dtype=np.int32))
        shortest = {1: math.inf, self.WARM_TOKENS: math.inf}
        for _ in range(self.WARM_CALLS):
            for length in shortest:
                began = self._clock.now()
                self._draw(self._tensor(row), batch, [length])
                shortest[length] = min(shortest[length], self._clock.now() - began)
        one, many = shortest.values()
        a_pass = max(0.0, many - one) / (self.WARM_TOKENS - 1)
        self._times.observe(1, a_pass)
        self.call_s = max(0.0, one - a_pass) + self.PREPARE_S

    def seconds(self, num_sequences: int) -> float:
        return self._times.expected(num_sequences)

    def forget(self, sequence: Sequence) -> None:
        draft = self._drafts.pop(sequence, None)
        if draft is not None:
            self._free.extend(draft.table[: draft.num_blocks].tolist())

    def propose(self, wanted: Items[tuple[Sequence, int]]) -> list[Guess]:
        began = self._clock.now()
        rows = self._rows(wanted)
        guesses = [NO_GUESS] * len(wanted)
        if not rows:
            return guesses
        rows.sort(key=lambda row: -row.length)
        token_ids, batch = self._known_tokens(rows)
        drawn = self._draw(token_ids, batch, [row.length for row in rows])
        guessed = [tokens[: row.length] for row, tokens in zip(rows, drawn.T.tolist(), strict=True)]
        for row, tokens in zip(rows, guessed, strict=True):
            row.draft.num_computed += len(row.tokens)
            row.draft.guess = tokens[:-1]
            guesses[row.index] = Guess(tokens)
        if len(token_ids) <= 2 * len(rows):  # else it took long to catch up
            took = self._clock.now() - began - self.call_s
            self._times.observe(len(rows), max(0.0, took) / len(drawn))
        return guesses

    def _rows(self, wanted: Items[tuple[Sequence, int]]) -> list[_Row]:
        rows: list[_Row] = []
        spare = self.CATCH_UP
        for sequence, _ in wanted:
            if sequence in self._drafts:
                self._drafts.move_to_end(sequence)  # so that none of these is forgotten for another
        for index, (sequence, length) in enumerate(wanted):
            draft = self._drafts.get(sequence)
            if draft is None:
                draft = self._drafts[sequence] = _Draft(np.zeros(self._table_size, dtype=np.int32))
            draft.settle(sequence.tokens)
            start, known = draft.num_computed, len(sequence.tokens)
            if known + length > min(self._table_size * BLOCK_SIZE, self._model.spec.max_context_length):
                continue
            count = min(known - start, self.FEW + spare)
            spare -= max(0, count - self.FEW)
            row = _Row(index, draft, sequence.tokens[start : start + count], length if start + count == known else 0)
            if max(row.tokens) >= self._model.spec.vocab_size:
                continue  # the large model's vocabulary may be padded further
            if self._reserve(draft, start + count + row.length, keep=len(wanted)):
                rows.append(row)
        return rows

    def _reserve(self, draft: _Draft, end: int, keep: int) -> bool:
        """Take blocks up to position `end`, from other sequences if needed; not from the `keep` most recently
        used ones."""
        needed = -(-end // BLOCK_SIZE) - draft.num_blocks
        while needed > len(self._free) and len(self._drafts) > keep:
            self.forget(next(iter(self._drafts)))
        if needed > len(self._free):
            return False
        for _ in range(needed):
            draft.table[draft.num_blocks] = self._free.pop()
            draft.num_blocks += 1
        return True

    def _known_tokens(self, rows: list[_Row]) -> tuple[torch.Tensor, PagedBatch]:
        """The pass over known tokens, with the blocks of all that will be guessed."""
        counts = np.array([len(row.tokens) for row in rows])
        starts = np.array([row.draft.num_computed for row in rows])
        width = -(-int((starts + counts + [row.length for row in rows]).max()) // BLOCK_SIZE)
        tables = np.stack([row.draft.table[:width] for row in rows])
        query_starts = np.concatenate(([0], counts.cumsum()))
        of_row = np.repeat(np.arange(len(rows)), counts)
        positions = np.arange(len(of_row)) + (starts - query_starts[:-1])[of_row]
        token_ids = np.array([token for row in rows for token in row.tokens], dtype=np.int64)
        return self._tensor(token_ids), self._batch(positions, query_starts, tables)

    def _draw(self, token_ids: torch.Tensor, batch: PagedBatch, lengths: list[int]) -> Ints:
        """[passes, S]: the likeliest token after a batch, and then after each of those, as many as each sequence wants.
        `lengths`: the longest first."""
        active = np.array([sum(length > n for length in lengths) for n in range(1, max(1, *lengths))], dtype=np.int64)
        if self._passes is not None:
            return self._passes.run(token_ids, batch, active, self._vocab_size)
        return self._draw_pass_by_pass(token_ids, batch, active)

    def _draw_pass_by_pass(self, token_ids: torch.Tensor, batch: PagedBatch, active: Ints) -> Ints:
        drawn = np.zeros((1 + len(active), len(batch.context_lens)), dtype=np.int64)
        drawn[0] = self._pass(token_ids, batch)
        ends, tables = batch.context_lens.numpy(force=True), batch.block_tables.numpy(force=True)
        for number, count in enumerate(active.tolist()):
            further = self._batch(ends[:count].astype(np.int64) + number, np.arange(count + 1), tables[:count])
            drawn[number + 1, :count] = self._pass(self._tensor(drawn[number, :count]), further)
        return drawn

    def _pass(self, token_ids: torch.Tensor, batch: PagedBatch) -> Ints:
        last = batch.query_starts[1:].to(torch.int64) - 1
        logits = self._model.forward(token_ids, batch, self._cache, last)
        likeliest: Ints = self._model.kernels.operations.most_likely(logits[:, : self._vocab_size])[0].numpy(force=True)
        return likeliest

    def _batch(self, positions: Ints, query_starts: Ints, tables: npt.NDArray[np.int32]) -> PagedBatch:
        return PagedBatch.of(positions, query_starts, tables, self._device)

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
