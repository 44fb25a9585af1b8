"""How many KV blocks a model gets, from the memory this process may use."""

from __future__ import annotations

from kvarn.config.schema import BLOCK_SIZE
from kvarn.costs.decoder import KvDtype, kv_bytes_per_token
from kvarn.kernels.memory import GIB, usable_memory
from kvarn.models import DecoderSpec
from kvarn.worker.errors import CacheTooLargeError, CacheTooSmallError

_DEFAULT_SHARE = 10
"""By default the cache takes one part in this many of the machine's memory."""
_LARGEST_DEFAULT_SHARE = 3
"""It may take up to one part in this many where a single long context needs it."""


def plan_kv_blocks(
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
) -> int:
    """Blocks of the KV cache.

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
        CacheTooSmallError: Not even one sequence of the longest length fits.
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
        num_blocks = min(budget // block_bytes, max_num_seqs * blocks_of_context)
    else:
        budget = int(kv_cache_gib * GIB)
        num_blocks = budget // block_bytes
        if budget > memory - weight_bytes:
            raise CacheTooLargeError(
                f"A KV cache of {kv_cache_gib:g} GiB does not fit into this machine's memory: it has "
                f"{memory / GIB:.1f} GiB, of which the weights take {weight_bytes / GIB:.1f}. Lower kv_cache_gib."
            )
    if num_blocks < blocks_of_context:
        needed_gib = blocks_of_context * block_bytes / GIB
        raise CacheTooSmallError(
            f"A KV cache of {budget / GIB:.3g} GiB holds {num_blocks * BLOCK_SIZE} tokens, but one context has up to "
            f"{max_context_length}. Set kv_cache_gib to at least {_round_up(needed_gib)}, or max_context_length to at "
            f"most {num_blocks * BLOCK_SIZE}."
        )
    return num_blocks


def _round_up(gib: float) -> str:
    """Three decimals, never less than the amount itself."""
    return f"{-(-gib * 1000 // 1) / 1000:.3f}"
