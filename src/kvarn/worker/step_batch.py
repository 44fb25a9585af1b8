"""The rows of a step in main memory: what one forward pass reads, and the use of each of its logits.

StepPlan.rows --StepBatch.of--> StepBatch --on_device--> PagedBatch --> LayerStep (one kind of attention)
  engine                       main memory                 device          models
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kvarn.engine.plan import LAST_SAMPLED, Row
from kvarn.kernels.adapters import AdapterMemory
from kvarn.kernels.batch import SHARED_TOKENS, BlockExchange, PagedBatch, StateBatch
from kvarn.shapes import BLOCK_SIZE
from kvarn.worker.slots import BASE_MODEL, SlotTable
from kvarn.worker.step_sizes import BUCKETS, captured_width

Ints = npt.NDArray[np.int64]
_NONE: Ints = np.zeros(0, dtype=np.int64)


class PromptSpan(NamedTuple):
    """Positions of one row whose following prompt token is known, and is reported on."""

    row: int
    slot: int
    first: int
    """First row of the span, counted behind the drawn ones."""
    next_token_ids: list[int]
    """The token that follows each position; as many as the span has rows."""
    num_top: int


class ProposalSpan(NamedTuple):
    """Positions of one row whose next token is drawn only if the proposals up to there were right."""

    place: int  # place of the row among the sampled ones
    first: int
    """Row, among the logits, of the position of the first proposal."""
    token_ids: list[int]  # the proposals


@dataclass(slots=True)
class StepBatch:
    """The rows of a plan, one after the other: T tokens of S sequences, R of whose logits are computed.

    Each row is one sequence, unless ranks share it: then each piece of it that this rank computes is one. `fill_up`
    appends tokens that have no context and go nowhere.
    """

    token_ids: Ints
    """[T]; `LAST_SAMPLED` stands for the token that the slot drew last."""
    positions: Ints
    """[T]"""
    query_starts: Ints
    """[S + 1]"""
    context_lens: Ints
    """[S]"""
    block_tables: npt.NDArray[np.int32]
    """[S, blocks of the longest one]"""
    slot_mapping: Ints
    """[T]; -1: the token's key and value are not kept."""
    row_of_token: Ints
    """[T], without those that fill the step up."""
    row_slots: Ints
    """[rows]"""
    row_ends: Ints
    """[rows] one past the last token of each row that is computed here."""
    sampled_rows: list[int]
    """Indices, in the plan, of the rows for which a token is drawn."""

    logits_rows: Ints = field(default_factory=_NONE.copy)
    """[R] tokens whose logits are computed: one for each of `sampled_rows` (before the proposals), then the proposal
    spans, those of slots with constraints last, then the prompt spans."""
    num_logits: int = 0  # r, without those that fill the step up
    num_drawn: int = 0
    """Number of logits before the prompt spans."""
    proposal_spans: list[ProposalSpan] = field(default_factory=list)
    prompt_spans: list[PromptSpan] = field(default_factory=list)
    drawn_together: tuple[Ints, Ints] | None = None
    """Place among the sampled rows and number of proposals before it, for the first logits, whose tokens can be drawn
    at once (all but those of constrained proposal spans); None: there are no proposals."""

    adapters: Ints = field(default_factory=_NONE.copy)
    """[T] index of each token's adapter, `BASE_MODEL` for none; empty where no row has one."""
    adapter_memory: AdapterMemory | None = None  # none: no row has an adapter
    state_places: Ints = field(default_factory=_NONE.copy)
    """[S], see `StateBatch`, as the next; both empty where the model has no recurrent states."""
    state_saves: Ints = field(default_factory=_NONE.copy)
    """[T]"""
    exchange: BlockExchange | None = None
    """See `PagedBatch`, as the next."""
    shares_prefix: bool = False
    bucket: int | None = None
    """Tokens, sequences and logits of a step that is filled up; None: it is neither filled up nor repeated."""

    @staticmethod
    def of(rows: Sequence[Row], slots: SlotTable) -> StepBatch:
        """Flatten the rows of a plan, whose blocks are in the slot table. Raises PlanError where they contradict the
        slots."""
        row_slots = np.array([row.slot for row in rows], dtype=np.int64)
        row_starts = np.array([row.start for row in rows], dtype=np.int64)
        token_lists = [row.token_ids for row in rows]
        lengths = np.fromiter(map(len, token_lists), dtype=np.int64, count=len(rows))
        context_lens = row_starts + lengths
        slots.check_rows(row_slots, context_lens)

        query_starts = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(lengths, out=query_starts[1:])
        num_tokens = int(query_starts[-1])
        token_ids = np.fromiter(chain.from_iterable(token_lists), dtype=np.int64, count=num_tokens)
        if num_tokens == len(rows):  # one token each: all decode
            row_of_token, positions = query_starts[:-1], row_starts
        else:
            row_of_token = np.repeat(np.arange(len(rows)), lengths)
            positions = np.arange(num_tokens) + (row_starts - query_starts[:-1])[row_of_token]
        width = -(-int(context_lens.max()) // BLOCK_SIZE)
        block_tables = slots.block_tables[row_slots, :width]
        blocks = block_tables[row_of_token, positions // BLOCK_SIZE].astype(np.int64)
        return StepBatch(
            token_ids=token_ids,
            positions=positions,
            query_starts=query_starts,
            context_lens=context_lens,
            block_tables=block_tables,
            slot_mapping=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
            row_of_token=row_of_token,
            row_slots=row_slots,
            row_ends=query_starts[1:],
            sampled_rows=[index for index, row in enumerate(rows) if row.sample],
        )

    @property
    def sampled_slots(self) -> Ints:
        return self.row_slots[self.sampled_rows]

    @property
    def has_shared_prefix(self) -> bool:
        """Whether the batch may set `shares_prefix`. Looks at the last block: the kernels compare all."""
        if len(self.token_ids) > len(self.row_slots) or (long := self.context_lens >= SHARED_TOKENS).sum() < 2:
            return False
        last = self.block_tables[long, SHARED_TOKENS // BLOCK_SIZE - 1]
        return len(np.unique(last)) < len(last)

    def take_last_tokens(self, slots: SlotTable) -> None:
        unknown = np.flatnonzero(self.token_ids == LAST_SAMPLED)
        if len(unknown):
            self.token_ids[unknown] = slots.last_token[self.row_slots[self.row_of_token[unknown]]]

    def choose_logits(self, rows: Sequence[Row], slots: SlotTable) -> None:
        before_proposals = self.row_ends[self.sampled_rows] - 1
        chosen: list[Ints] = [before_proposals]
        if len(self.token_ids) > len(rows):
            chosen += self._add_proposal_spans(rows, before_proposals, slots)
        self.num_drawn = sum(map(len, chosen))
        if slots.prompts:
            chosen += self._add_prompt_spans(rows, slots)
        self.logits_rows = np.concatenate(chosen) if len(chosen) > 1 else before_proposals
        self.num_logits = len(self.logits_rows)

    def _add_proposal_spans(self, rows: Sequence[Row], before_proposals: Ints, slots: SlotTable) -> list[Ints]:
        """Add the spans of rows with proposals; returns the tokens of the batch that they cover. `before_proposals`,
        [len(sampled_rows)]: last token of each row; becomes the one before its proposals."""
        counts = {
            place: rows[index].num_proposals - rows[index].num_forced
            for place, index in enumerate(self.sampled_rows)
            if rows[index].num_proposals > rows[index].num_forced
        }
        if not counts:
            return []
        free = [place for place in counts if rows[self.sampled_rows[place]].slot not in slots.constraints]
        constrained = [place for place in counts if rows[self.sampled_rows[place]].slot in slots.constraints]
        tokens: list[Ints] = []
        first = len(self.sampled_rows)
        for place in free + constrained:
            count = counts[place]
            before_proposals[place] -= count
            proposals = rows[self.sampled_rows[place]].token_ids[-count:]
            self.proposal_spans.append(ProposalSpan(place, first, proposals))
            tokens.append(before_proposals[place] + 1 + np.arange(count))
            first += count
        lengths = [counts[place] for place in free]
        sampled = np.arange(len(self.sampled_rows))
        places = np.concatenate((sampled, np.repeat(np.array(free, dtype=np.int64), lengths)))
        ahead = np.concatenate((np.zeros_like(sampled), *(np.arange(1, count + 1) for count in lengths)))
        self.drawn_together = places, ahead
        return tokens

    def _add_prompt_spans(self, rows: Sequence[Row], slots: SlotTable) -> list[Ints]:
        """Add the spans of rows that report on their prompt; returns the tokens of the batch that they cover. The
        token after a chunk's last position comes from the admission's prompt."""
        tokens: list[Ints] = []
        first = 0
        for index, row in enumerate(rows):
            if not row.prompt_logprobs:
                continue
            prompt, num_top = slots.prompts[row.slot]
            following = prompt[row.start + 1 : row.start + len(row.token_ids) + 1]
            self.prompt_spans.append(PromptSpan(index, row.slot, first, following, num_top))
            tokens.append(self.row_ends[index] - len(row.token_ids) + np.arange(len(following)))
            first += len(following)
        return tokens

    def fill_up(self, max_tokens: int) -> None:
        """Fill the step up to one of `BUCKETS` of at most `max_tokens`, if it can be repeated: each token's logits are
        computed, so sequences decode or verify proposals. Each new token is a sequence of its own, and the sequences
        that are missing then have no token."""
        tokens, sequences = len(self.token_ids), len(self.context_lens)
        asks_host = self.adapter_memory is not None and self.adapter_memory.captured_form is None
        more = more_sequences = 0
        if self.exchange is None and not asks_host and self.num_logits == tokens <= max_tokens:
            self.bucket = next(bucket for bucket in BUCKETS if bucket >= tokens)
            more, more_sequences = self.bucket - tokens, self.bucket - sequences
        if more_sequences:
            ends = np.minimum(tokens + 1 + np.arange(more_sequences), tokens + more)
            self.query_starts = np.concatenate([self.query_starts, ends])
            self.context_lens = filled(self.context_lens, more_sequences, 0)
            if len(self.state_places):
                self.state_places = filled(self.state_places, more_sequences, -1)
        width = captured_width(self.block_tables.shape[1]) if max_tokens else self.block_tables.shape[1]
        if self.block_tables.shape != (sequences + more_sequences, width):
            tables = np.zeros((sequences + more_sequences, width), dtype=np.int32)
            tables[:sequences, : self.block_tables.shape[1]] = self.block_tables
            self.block_tables = tables
        if more:
            self.token_ids = filled(self.token_ids, more, 0)
            self.positions = filled(self.positions, more, 0)
            self.slot_mapping = filled(self.slot_mapping, more, -1)
            self.logits_rows = np.concatenate([self.logits_rows, tokens + np.arange(more)])
            if len(self.adapters):
                self.adapters = filled(self.adapters, more, BASE_MODEL)
            if len(self.state_saves):
                self.state_saves = filled(self.state_saves, more, -1)

    @property
    def key(self) -> Hashable:
        """Identity of this step for repetition: all else is read from `arrays`."""
        form = None if self.adapter_memory is None else self.adapter_memory.captured_form
        return self.bucket, self.block_tables.shape[1], self.shares_prefix, form

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return (
            self.token_ids,
            self.positions,
            self.query_starts.astype(np.int32),
            self.context_lens.astype(np.int32),
            self.block_tables,
            self.slot_mapping,
            self.adapters,
            self.state_places,
            self.state_saves,
            self.logits_rows,
        )

    def on_device(self, arrays: Sequence[torch.Tensor]) -> tuple[torch.Tensor, PagedBatch, torch.Tensor]:
        """Token ids [T], the batch that the layers read, and `logits_rows`, made of the device's `arrays`."""
        token_ids, positions, query_starts, context_lens, tables, mapping, adapters, places, saves, logits = arrays
        batch = PagedBatch(
            positions=positions,
            query_starts=query_starts,
            context_lens=context_lens,
            block_tables=tables,
            slot_mapping=mapping,
            adapters=None if self.adapter_memory is None else self.adapter_memory.batch(adapters),
            exchange=self.exchange,
            recurrent_states=StateBatch(places, saves) if len(self.state_places) else None,
            shares_prefix=self.shares_prefix,
        )
        return token_ids, batch, logits


def filled(array: npt.NDArray[Any], more: int, value: Any) -> npt.NDArray[Any]:
    return np.concatenate([array, np.full(more, value, dtype=array.dtype)]) if more else array
