"""The shape of one step for the kernels: many sequences of any lengths, flattened, without padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from kvarn.shapes import BLOCK_SIZE

if TYPE_CHECKING:
    from kvarn.kernels.adapters import AdapterBatch


SHARED_TOKENS = 256
"""Tokens of a prefix whose blocks several sequences must share, for kernels to read them together."""


class HeadShape(NamedTuple):
    """The attention heads of one layer on one rank."""

    query: int
    kv: int
    dim: int  # numbers in a head


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotary embedding of one step's tokens: the first 2 R numbers of each head turn by their position's angles."""

    cos: torch.Tensor
    """[T, R] float32."""
    sin: torch.Tensor


class BlockExchange(Protocol):
    """Several ranks compute a step, each some of its tokens, and each has a whole cache."""

    def share(self, *caches: torch.Tensor) -> None:
        """Give the other ranks the blocks of one layer that this rank has written, and take theirs. caches: its keys
        and values, or its latent rows."""
        ...


@dataclass(frozen=True, slots=True)
class StateBatch:
    """Recurrent states of the S sequences of one step, and the places of their copies."""

    places: torch.Tensor
    """[S] int64: the place of each sequence's state in the `StateCache`; -1 for those that fill a step up."""
    saves: torch.Tensor
    """[T] int64: the place that the sequence's state after each token is copied to; -1: none. No two tokens name one
    place, nor one that is in `places`."""


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Rows of one step, flattened into T tokens of S sequences.

    Sequence s has queries `query_starts[s]:query_starts[s+1]`; they are the last of its `context_lens[s]` tokens, whose
    keys and values are in the blocks `block_tables[s]`. Token t's key and value are written to `slot_mapping[t]`
    (block * BLOCK_SIZE + offset) before any query reads.
    """

    positions: torch.Tensor
    """[T] int64: position of each token in its sequence."""
    query_starts: torch.Tensor
    """[S + 1] int32."""
    context_lens: torch.Tensor
    """[S] int32: tokens in the cache once this step's are written."""
    block_tables: torch.Tensor
    """[S, max_blocks] int32; entries past a sequence's blocks are 0 and never read as KV of it."""
    slot_mapping: torch.Tensor
    """[T] int64."""
    adapters: AdapterBatch | None = None
    """The adapters that the tokens are computed with. None: the base model for all."""
    exchange: BlockExchange | None = None
    """Queries read blocks that other ranks write in this step, and these read blocks written here. None: none do."""
    recurrent_states: StateBatch | None = None
    """None where the model has no recurrent states."""
    shares_prefix: bool = False
    """Each sequence has one query, and some begin with the same `SHARED_TOKENS`: kernels may read those once."""

    @staticmethod
    def of(
        positions: npt.NDArray[np.int64],
        query_starts: npt.NDArray[np.int64],
        block_tables: npt.NDArray[np.int32],
        device: torch.device,
    ) -> PagedBatch:
        """The batch of T tokens at `positions` of S sequences, whose blocks are in the tables of these."""
        sequences = np.repeat(np.arange(len(block_tables)), np.diff(query_starts))
        blocks = block_tables[sequences, positions // BLOCK_SIZE].astype(np.int64)
        context_lens = positions[query_starts[1:] - 1] + 1
        slot_mapping = blocks * BLOCK_SIZE + positions % BLOCK_SIZE
        return PagedBatch(
            positions=torch.from_numpy(positions).to(device),
            query_starts=torch.from_numpy(query_starts.astype(np.int32)).to(device),
            context_lens=torch.from_numpy(context_lens.astype(np.int32)).to(device),
            block_tables=torch.from_numpy(block_tables).to(device),
            slot_mapping=torch.from_numpy(slot_mapping).to(device),
        )


def whole_texts(lengths: torch.Tensor) -> tuple[PagedBatch, int]:
    """S texts of these lengths [S] int64, one after the other, over a cache that holds nothing else; and its blocks."""
    device = lengths.device
    blocks = (lengths + BLOCK_SIZE - 1) // BLOCK_SIZE
    first_block = blocks.cumsum(0) - blocks
    ends = lengths.cumsum(0)
    text = torch.repeat_interleave(torch.arange(len(lengths), device=device), lengths)
    positions = torch.arange(int(lengths.sum()), device=device) - (ends - lengths)[text]
    batch = PagedBatch(
        positions=positions,
        query_starts=torch.cat([ends.new_zeros(1), ends]).int(),
        context_lens=lengths.int(),
        block_tables=(first_block[:, None] + torch.arange(int(blocks.max()), device=device)).int(),
        slot_mapping=first_block[text] * BLOCK_SIZE + positions,
    )
    return batch, int(blocks.sum())


@dataclass(frozen=True, slots=True)
class StateCache:
    """The recurrent states of all layers that have them, by place: those of running sequences, and copies of some.

    float32: the matrices of the heads [layers, places, value_heads, key_dim, value_dim], and the last inputs of the
    convolution [layers, places, window - 1, channels], the newest last.
    """

    matrices: torch.Tensor
    inputs: torch.Tensor

    @property
    def num_places(self) -> int:
        return self.matrices.shape[1]

    def clear(self, place: int) -> None:
        """Make a state that of a sequence without tokens."""
        self.matrices[:, place].zero_()
        self.inputs[:, place].zero_()

    def copy(self, source: int, target: int) -> None:
        self.matrices[:, target].copy_(self.matrices[:, source])
        self.inputs[:, target].copy_(self.inputs[:, source])


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of all layers that attend, in blocks, and beside them the recurrent states of the others.

    keys[l], values[l]: the first dimension counts blocks; the rest is known to the backend that made them. A cache of
    latent rows has them as its keys, and no values.
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    recurrent_states: StateCache | None = None

    @property
    def num_blocks(self) -> int:
        return int(self.keys[0].shape[0])
