"""How many KV blocks a model gets, from the memory this process may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kvarn.config.schema import BLOCK_SIZE
from kvarn.costs.decoder import KvDtype, kv_bytes_per_token, state_bytes
from kvarn.kernels.memory import GIB, DeviceMemory, usable_memory
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
_ACTIVATION_BYTES = 16
"""Of each number that a layer makes of a token: in float32, with the copies that live at once."""
_FIXED_BYTES = GIB // 2
"""Captured steps, scratch memory of kernels and their code."""


class CachePlan(NamedTuple):
    """What the memory for the KV cache is divided into."""

    num_blocks: int
    num_snapshots: int
    """Copies of recurrent states, beside one state for each sequence that may run; 0 where the model has no states."""


@dataclass(frozen=True, slots=True)
class GpuBudget:
    """What the ranks of an engine may take of their GPUs, the weights loaded."""

    memory: DeviceMemory
    """Of the GPU that has the least for it."""
    share: float
    """Of a GPU's whole memory that a rank takes."""
    ranks: int
    step_bytes: int
    """What a step needs beside weights and KV cache."""

    @property
    def cache_bytes(self) -> int:
        """What is left for the KV cache, of all ranks."""
        return max(0, self.memory.usable(self.share) - self.step_bytes) * self.ranks

    def __str__(self) -> str:
        """Where the memory goes."""
        memory = self.memory
        return (
            f"of {self.share:g} of a GPU's {memory.total / GIB:.1f} GiB (gpu_memory_utilization) the weights take "
            f"{memory.own / GIB:.1f} and a step up to {self.step_bytes / GIB:.1f}; other processes hold "
            f"{memory.others / GIB:.1f}"
        )


def step_bytes(spec: DecoderSpec, token_budget: int, max_num_seqs: int) -> int:
    """What the largest step needs beside weights and KV cache, estimated on the large side.

    Activations of `token_budget` tokens, logits of `max_num_seqs` rows and what is drawn from, captured steps.
    """
    attention = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    mlp = max(spec.intermediate_size, spec.expert_size * spec.experts_per_token + spec.shared_expert_size)
    activations = token_budget * (spec.hidden_size + attention + mlp) * _ACTIVATION_BYTES
    return activations + max_num_seqs * spec.vocab_size * _ACTIVATION_BYTES + _FIXED_BYTES


def plan_cache(
    spec: DecoderSpec,
    dtype: KvDtype,
    *,
    kv_cache_gib: float | None,
    max_num_seqs: int,
    max_context_length: int,
    weight_bytes: int = 0,
    memory_bytes: int | None = None,
    gpu: GpuBudget | None = None,
    copies: int = 1,
) -> CachePlan:
    """The sizes of the KV cache, and of the recurrent states beside it: one budget for both.

    Args:
        spec: Of the decoder.
        dtype: Of keys and values.
        kv_cache_gib: Memory to use in GiB, all of it. Default: a tenth of the machine's, or what one full context
            needs, up to a third of the machine's; on GPUs what `gpu` leaves; but no more than `max_num_seqs` full
            contexts need.
        max_num_seqs: Sequences that may run at once.
        max_context_length: Tokens of the longest sequence.
        weight_bytes: What the loaded weights take of the machine's memory.
        memory_bytes: The machine's memory, where it is known already; default: `usable_memory()`.
        gpu: Where keys and values lie on GPUs; None: in the machine's memory.
        copies: Ranks that hold the same key/value head, all in this memory.

    Raises:
        CacheTooSmallError: Not even one sequence of the longest length fits, or not the states of `max_num_seqs`.
        CacheTooLargeError: `kv_cache_gib` is more than the memory that the weights leave.
    """
    block_bytes = kv_bytes_per_token(spec, dtype) * BLOCK_SIZE * copies
    blocks_of_context = -(-max_context_length // BLOCK_SIZE)
    if kv_cache_gib is not None:
        budget = int(kv_cache_gib * GIB)
        _check_fits(kv_cache_gib, budget, weight_bytes, memory_bytes, gpu)
    else:
        budget = _default_budget(blocks_of_context * block_bytes, memory_bytes) if gpu is None else gpu.cache_bytes
    states = _bytes_of_states(spec, budget, max_num_seqs)
    num_snapshots = _num_snapshots(spec, budget - states - blocks_of_context * block_bytes, max_num_seqs)
    num_blocks = max(0, budget - states - num_snapshots * state_bytes(spec)) // block_bytes
    if kv_cache_gib is None:
        num_blocks = min(num_blocks, max_num_seqs * blocks_of_context)
    if num_blocks < blocks_of_context:
        needed_gib = _round_up((states + blocks_of_context * block_bytes) / GIB)
        most = num_blocks * BLOCK_SIZE
        raise CacheTooSmallError(
            f"A KV cache of {budget / GIB:.3g} GiB holds {most} tokens, but one context has up to "
            f"{max_context_length}, {needed_gib} GiB"
            + (
                f". Set kv_cache_gib to at least {needed_gib}, or max_context_length to at most {most}."
                if gpu is None or kv_cache_gib is not None
                else f": {gpu}. Raise gpu_memory_utilization, or set max_context_length to at most {most}."
            )
        )
    return CachePlan(num_blocks, num_snapshots)


def _num_snapshots(spec: DecoderSpec, spare_bytes: int, max_num_seqs: int) -> int:
    one = state_bytes(spec)
    return min(max(0, spare_bytes) // _SNAPSHOT_SHARE // one, _SNAPSHOTS_PER_SEQUENCE * max_num_seqs) if one else 0


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


def _default_budget(context_bytes: int, memory_bytes: int | None) -> int:
    memory = usable_memory() if memory_bytes is None else memory_bytes
    return max(memory // _DEFAULT_SHARE, min(context_bytes, memory // _LARGEST_DEFAULT_SHARE))


def _check_fits(
    kv_cache_gib: float, budget: int, weight_bytes: int, memory_bytes: int | None, gpu: GpuBudget | None
) -> None:
    if gpu is not None:
        left = gpu.memory.free * gpu.ranks
        if budget > left:
            raise CacheTooLargeError(
                f"A KV cache of {kv_cache_gib:g} GiB does not fit: {left / GIB:.1f} GiB are free, {gpu}. Lower "
                "kv_cache_gib, or leave it out."
            )
        return
    memory = usable_memory() if memory_bytes is None else memory_bytes
    if budget > memory - weight_bytes:
        raise CacheTooLargeError(
            f"A KV cache of {kv_cache_gib:g} GiB does not fit into this machine's memory: it has "
            f"{memory / GIB:.1f} GiB, of which the weights take {weight_bytes / GIB:.1f}. Lower kv_cache_gib."
        )


def _round_up(gib: float) -> str:
    """Three decimals, never less than the amount itself."""
    return f"{-(-gib * 1000 // 1) / 1000:.3f}"
