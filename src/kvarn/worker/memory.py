"""How many KV blocks a model gets, from the memory this process may use."""

from __future__ import annotations

from typing import NamedTuple

from kvarn.config.schema import BLOCK_SIZE
from kvarn.costs.decoder import KvDtype, kv_bytes_per_token, state_bytes
from kvarn.kernels.memory import GIB, usable_memory
from kvarn.models import DecoderSpec
from kvarn.worker.errors import CacheTooLargeError, CacheTooSmallError

_DEFAULT_SHARE = 10
"""By default the cache takes one part in this many of the machine's memory."""
_LARGEST_DEFAULT_SHARE = 3
"""It may take up to one part in this many where a single long context needs it."""


_SNAPSHOT_SHARE = 4
"""Snapshots of recurrent states take one part in this many of what running sequences' states and one full context
leave."""
_SNAPSHOTS_PER_SEQUENCE = 4
"""But no more than so many for each sequence that may run."""


class CachePlan(NamedTuple):
    """What the memory for the KV cache is divided into."""

    num_blocks: int
    num_snapshots: int
    """Copies of recurrent states, beside one state for each sequence that may run; 0 where the model has no states."""


def plan_cache(
    spec: DecoderSpec,
    dtype: KvDtype,
    *,
    kv_cache_gib: float | None,
    max_num_seqs: int,
    max_context_length: int,
    weight_bytes: int = 0,
    memory_bytes: int | None = None,
    free_bytes: int | None = None,
    copies: int = 1,
) -> CachePlan:
    """The sizes of the KV cache, and of the recurrent states beside it: one budget for both.

    Args:
        spec: Of the decoder.
        dtype: Of keys and values.
        kv_cache_gib: Memory to use in GiB, all of it. Default: a tenth of the machine's, or what one full context
            needs, up to a third of the machine's; on a device with memory of its own nine tenths of `free_bytes`; but
            no more than `max_num_seqs` full contexts need.
        max_num_seqs: Sequences that may run at once.
        max_context_length: Tokens of the longest sequence.
        weight_bytes: What the loaded weights take.
        memory_bytes: The machine's memory, where it is known already; default: `usable_memory()`.
        free_bytes: What is free on a device with memory of its own, the weights loaded; None: it is the machine's.
        copies: Ranks that hold the same key/value head, all in this memory.

    Raises:
        CacheTooSmallError: Not even one sequence of the longest length fits, or not the states of `max_num_seqs`.
        CacheTooLargeError: `kv_cache_gib` is more than the memory that the weights leave.
    """
    block_bytes = kv_bytes_per_token(spec, dtype) * BLOCK_SIZE * copies
    blocks_of_context = -(-max_context_length // BLOCK_SIZE)
    memory = usable_memory() if memory_bytes is None else memory_bytes
    if kv_cache_gib is None:
        one_context = min(blocks_of_context * block_bytes, memory // _LARGEST_DEFAULT_SHARE)
        budget = max(memory // _DEFAULT_SHARE, one_context)
        if free_bytes is not None:
            budget = free_bytes * 9 // 10  # the rest is for activations and captured steps
    else:
        budget = int(kv_cache_gib * GIB)
        if budget > memory - weight_bytes:
            raise CacheTooLargeError(
                f"A KV cache of {kv_cache_gib:g} GiB does not fit into this machine's memory: it has "
                f"{memory / GIB:.1f} GiB, of which the weights take {weight_bytes / GIB:.1f}. Lower kv_cache_gib."
            )
    states = _bytes_of_states(spec, budget, max_num_seqs)
    spare = max(0, budget - states - blocks_of_context * block_bytes)
    one_state = state_bytes(spec)
    num_snapshots = min(spare // _SNAPSHOT_SHARE // one_state, _SNAPSHOTS_PER_SEQUENCE * max_num_seqs) if states else 0
    num_blocks = (budget - states - num_snapshots * one_state) // block_bytes
    if kv_cache_gib is None:
        num_blocks = min(num_blocks, max_num_seqs * blocks_of_context)
    if num_blocks < blocks_of_context:
        needed_gib = (states + blocks_of_context * block_bytes) / GIB
        raise CacheTooSmallError(
            f"A KV cache of {budget / GIB:.3g} GiB holds {num_blocks * BLOCK_SIZE} tokens, but one context has up to "
            f"{max_context_length}. Set kv_cache_gib to at least {_round_up(needed_gib)}, or max_context_length to at "
            f"most {num_blocks * BLOCK_SIZE}."
        )
    return CachePlan(num_blocks, num_snapshots)


def _bytes_of_states(spec: DecoderSpec, budget: int, max_num_seqs: int) -> int:
    """Of the recurrent states of the sequences that may run."""
    one = state_bytes(spec)
    if one and max_num_seqs * one >= budget:
        raise CacheTooSmallError(
            f"The recurrent states of {max_num_seqs} sequences take {max_num_seqs * one / GIB:.3g} GiB, but the KV "
            f"cache has {budget / GIB:.3g} GiB for them and its blocks. Set engine.max_num_seqs to at most "
            f"{max(1, budget // (2 * one))}, or kv_cache_gib to at least {_round_up(2 * max_num_seqs * one / GIB)}."
        )
    return max_num_seqs * one


def _round_up(gib: float) -> str:
    """Three decimals, never less than the amount itself."""
    return f"{-(-gib * 1000 // 1) / 1000:.3f}"
