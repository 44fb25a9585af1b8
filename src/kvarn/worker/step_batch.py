"""From the rows of a plan to the tokens of one forward pass, in vector operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from kvarn.engine.plan import LAST_SAMPLED, Row
from kvarn.kernels.batch import SHARED_TOKENS, BlockExchange
from kvarn.shapes import BLOCK_SIZE
from kvarn.worker.ranks.context_parallel import ContextParallel
from kvarn.worker.slots import SlotTable

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """Positions of one row whose following prompt token is known and wanted."""

    row: int
    """Index of the row in the plan."""
    slot: int
    first: int
    """The span's first row behind the drawn ones."""
    next_token_ids: list[int]
    """The token that follows each position; as many as the span has rows."""
    num_top: int


@dataclass(frozen=True, slots=True)
class ProposalSpan:
    """Positions of one row whose next token is drawn only if the proposals up to there were right."""

    place: int
    """Of the row among the sampled ones."""
    first: int
    """Row, among the logits, of the position of the first proposal."""
    token_ids: list[int]
    """The proposals."""


@dataclass(frozen=True, slots=True)
class FlatRows:
    """R rows of a plan, one after the other: T tokens of S sequences. Each row is one, unless ranks share it: then each
    piece of it that this rank computes is one."""

    token_ids: Ints
    """[T]; `LAST_SAMPLED` stands as it is."""
    row_of_token: Ints
    """[T]"""
    positions: Ints
    """[T]"""
    slot_mapping: Ints
    """[T]"""
    row_slots: Ints
    """[R]"""
    query_starts: Ints
    """[S + 1]"""
    context_lens: Ints
    """[S]"""
    block_tables: npt.NDArray[np.int32]
    """[S, blocks of the longest one]"""
    row_ends: Ints
    """[R] one past the last token of each row that is computed here."""
    exchange: BlockExchange | None = None
    """See `PagedBatch.exchange`."""

    @property
    def shares_prefix(self) -> bool:
        """See `PagedBatch.shares_prefix`. Looks at the last block: the kernels compare all."""
        if len(self.token_ids) > len(self.row_slots) or (long := self.context_lens >= SHARED_TOKENS).sum() < 2:
            return False
        last = self.block_tables[long, SHARED_TOKENS // BLOCK_SIZE - 1]
        return len(np.unique(last)) < len(last)


def flatten_rows(rows: Sequence[Row], slots: SlotTable) -> FlatRows:
    """Flatten the rows of a plan, whose blocks are already entered in the slot table.

    Raises:
        PlanError: A row is of an unknown slot or runs past the longest context.
    """
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
    slot_mapping = blocks * BLOCK_SIZE + positions % BLOCK_SIZE
    return FlatRows(
        token_ids=token_ids,
        row_of_token=row_of_token,
        positions=positions,
        slot_mapping=slot_mapping,
        row_slots=row_slots,
        query_starts=query_starts,
        context_lens=context_lens,
        block_tables=block_tables,
        row_ends=query_starts[1:],
    )


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The rows of a plan, flattened, and which of their logits are for what."""

    flat: FlatRows
    logits_rows: Ints
    """[R]: tokens whose logits are computed: first one for each of `sampled_rows` (before the proposals), then the
    proposal spans, those of slots with constraints last, and the prompt spans."""
    num_drawn_rows: int
    """Of those, before the prompt spans."""
    sampled_rows: list[int]
    """Indices, in the plan, of the rows for which a token is drawn."""
    sampled_slots: Ints
    """[len(sampled_rows)] their slots."""
    proposal_spans: list[ProposalSpan]
    prompt_spans: list[PromptSpan]
    drawn_ahead: tuple[Ints, Ints] | None
    """Where there are proposals: of the first logits, whose tokens can all be drawn at once (all but those of
    constrained proposal spans), the place among the sampled rows and the number of proposals before it."""


def build_inputs(
    rows: Sequence[Row], slots: SlotTable, device: torch.device, context: ContextParallel | None = None
) -> StepInputs:
    """The rows of a plan (see `flatten_rows`), with the tokens that their slots drew last. `context`: the ranks that
    share long prompts, of which rank 0 alone needs logits; this one computes its part, on `device`."""
    flat = flatten_rows(rows, slots)
    if context is not None:
        flat = context.divide(rows, flat, device)
    token_ids, row_slots, row_ends = flat.token_ids, flat.row_slots, flat.row_ends
    unknown = np.flatnonzero(token_ids == LAST_SAMPLED)
    if len(unknown):
        token_ids[unknown] = slots.last_token[row_slots[flat.row_of_token[unknown]]]
    sampled_rows = [index for index, row in enumerate(rows) if row.sample]
    first_drawn = row_ends[sampled_rows] - 1
    proposal_spans: list[ProposalSpan] = []
    prompt_spans: list[PromptSpan] = []
    drawn_tokens: list[Ints] = [first_drawn]
    drawn_ahead: tuple[Ints, Ints] | None = None
    prompt_tokens: list[Ints] = []
    if len(token_ids) > len(rows):
        proposal_spans, proposal_tokens, drawn_ahead = _proposal_spans(rows, sampled_rows, first_drawn, slots)
        drawn_tokens += proposal_tokens
    if slots.prompts:
        prompt_spans, prompt_tokens = _prompt_spans(rows, slots, row_ends)
    if context is not None and context.rank:
        drawn_tokens, prompt_tokens, prompt_spans = [row_ends[:0]], [], []
    wanted = np.concatenate((*drawn_tokens, *prompt_tokens))
    return StepInputs(
        flat=flat,
        logits_rows=wanted,
        num_drawn_rows=sum(map(len, drawn_tokens)),
        sampled_rows=sampled_rows,
        sampled_slots=row_slots[sampled_rows],
        proposal_spans=proposal_spans,
        prompt_spans=prompt_spans,
        drawn_ahead=drawn_ahead,
    )


def _proposal_spans(
    rows: Sequence[Row], sampled_rows: list[int], first_drawn: Ints, slots: SlotTable
) -> tuple[list[ProposalSpan], list[Ints], tuple[Ints, Ints] | None]:
    """The spans of sampled rows with proposals, the tokens of the batch at which these stand, and
    `StepInputs.drawn_ahead`.

    `first_drawn`, [len(sampled_rows)]: last token of each row; becomes the one before its proposals.
    """
    proposing = [place for place, index in enumerate(sampled_rows) if _verified(rows[index])]
    if not proposing:
        return [], [], None
    free = [place for place in proposing if rows[sampled_rows[place]].slot not in slots.constraints]
    constrained = [place for place in proposing if rows[sampled_rows[place]].slot in slots.constraints]
    spans: list[ProposalSpan] = []
    tokens: list[Ints] = []
    first = len(sampled_rows)
    for place in free + constrained:
        row = rows[sampled_rows[place]]
        count = _verified(row)
        first_drawn[place] -= count
        spans.append(ProposalSpan(place, first, row.token_ids[-count:]))
        tokens.append(first_drawn[place] + 1 + np.arange(count))
        first += count
    lengths = [_verified(rows[sampled_rows[place]]) for place in free]
    places = np.concatenate((np.arange(len(sampled_rows)), np.repeat(np.array(free, dtype=np.int64), lengths)))
    ahead = np.concatenate((np.zeros(len(sampled_rows), dtype=np.int64), *(np.arange(1, n + 1) for n in lengths)))
    return spans, tokens, (places, ahead)


def _verified(row: Row) -> int:
    """Proposals whose logits are looked at."""
    return row.num_proposals - row.num_forced


def _prompt_spans(rows: Sequence[Row], slots: SlotTable, row_ends: Ints) -> tuple[list[PromptSpan], list[Ints]]:
    """The spans of rows that report on their prompt, and the tokens of the batch which they cover.

    The token after a chunk's last position is not in the chunk: it is taken from the admission's prompt.
    """
    spans: list[PromptSpan] = []
    tokens: list[Ints] = []
    first = 0
    for index, row in enumerate(rows):
        if not row.prompt_logprobs:
            continue
        prompt, num_top = slots.prompts[row.slot]
        following = prompt[row.start + 1 : row.start + len(row.token_ids) + 1]
        spans.append(PromptSpan(index, row.slot, first, following, num_top))
        tokens.append(row_ends[index] - len(row.token_ids) + np.arange(len(following)))
        first += len(following)
    return spans, tokens
