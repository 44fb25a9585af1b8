"""Size of the KV cache, planned from the memory that an engine may use. Servers and the planner both use it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from kvarn.costs.device_memory import GIB, DeviceMemory
from kvarn.shapes import BLOCK_SIZE, KvDtype
from kvarn.shapes.decoder import DecoderShape

MAX_CAPTURED = 64
"""Graphs of captured steps at most: the driver keeps memory of the device for each kernel of each graph."""

_DEFAULT_SHARE = 10
"""Default size of the cache: one part in this many of the machine's memory."""
_LARGEST_DEFAULT_SHARE = 3
"""Limit where one long context, or recurrent states, need more than the default."""
_SPARE_SHARE = 10
"""Part of the memory left free, beside the weights, where a single sequence needs more than that limit."""
_STATE_SHARE = 2
"""Part of what one full context leaves for recurrent states of running sequences, unless `max_num_seqs` is set."""
_SNAPSHOT_SHARE = 4
"""Part of what those states and one full context leave for snapshots of states."""
_SNAPSHOTS_PER_SEQUENCE = 4  # most snapshots for each sequence that may run
_ACTIVATION_BYTES = 16
"""Bytes of an activation: float32, with the copies that live at once."""
_LOGIT_BYTES = 8
"""Bytes of a logit, with the copies that live at once."""
_FIXED_BYTES = GIB // 2
"""Scratch memory of kernels (for segments of attention, twice: captured steps have memory of their own)."""
_LAUNCHES = 10  # kernels of a layer, at most about
_LAUNCH_BYTES = 32 * 1024
"""Driver memory for a kernel of a captured step; an estimate."""


class CachePlanError(Exception):
    """The memory does not do for the KV cache."""


class CacheTooSmallError(CachePlanError):
    """KV cache too small for one sequence of the longest length."""

    def __init__(self, message: str, tokens: int = 0) -> None:
        super().__init__(message)
        self.tokens = tokens
        """Tokens that it holds."""


class CacheTooLargeError(CachePlanError):
    """KV cache larger than the machine's memory."""


class CachePlan(NamedTuple):
    num_blocks: int
    max_num_seqs: int  # sequences that may run at once: as configured, or fewer where that is allowed
    num_snapshots: int
    """Copies of recurrent states, beside one state for each sequence that may run; 0 where the model has no states."""
    max_context_length: int  # tokens of the longest sequence: as configured, or fewer where that is allowed


@dataclass(frozen=True, slots=True)
class GpuBudget:
    """Memory that the ranks of an engine may take of their GPUs, once the weights are loaded."""

    memory: DeviceMemory
    """Memory of the GPU with the least room."""
    share: float  # share of a GPU's whole memory that a rank takes
    ranks: float
    """Number of ranks, were each to hold as much of a block as the one that holds most (`even_ranks`)."""
    step_bytes: int  # bytes of a step beside weights and KV cache

    @property
    def cache_bytes(self) -> int:
        return int(max(0, self.memory.usable(self.share) - self.step_bytes) * self.ranks)

    def __str__(self) -> str:
        memory = self.memory
        return (
            f"of {self.share:g} of a GPU's {memory.total / GIB:.1f} GiB (gpu_memory_utilization) the weights take "
            f"{memory.own / GIB:.1f} with what the driver needs, and a step up to {self.step_bytes / GIB:.1f}; other "
            f"processes hold {memory.others / GIB:.1f}"
        )


class StepMemory(NamedTuple):
    """Bytes of the largest step beside weights and KV cache, estimated on the large side."""

    activations: int
    logits: int
    graphs: int
    """Captured steps, in the driver's memory."""
    scratch: int
    """Memory of kernels."""


def step_memory(spec: DecoderShape, token_budget: int, max_num_seqs: int, logits_rows: int = 0) -> StepMemory:
    """Activations of `token_budget` tokens, and again of `max_num_seqs` in the memory of captured steps; logits of
    `max_num_seqs` rows, or of `logits_rows` where guesses are verified, and what is drawn from; captured steps.
    """
    activations = (token_budget + max_num_seqs) * spec.activations * _ACTIVATION_BYTES
    logits = max(2 * max_num_seqs, logits_rows) * spec.vocab_size * _LOGIT_BYTES
    graphs = MAX_CAPTURED * spec.num_layers * _LAUNCHES * _LAUNCH_BYTES
    return StepMemory(activations, logits, graphs, _FIXED_BYTES)


def step_bytes(spec: DecoderShape, token_budget: int, max_num_seqs: int, logits_rows: int = 0) -> int:
    return sum(step_memory(spec, token_budget, max_num_seqs, logits_rows))


def captured_bytes(spec: DecoderShape, tokens: int) -> int:
    """Bytes that the graphs of captured steps of up to `tokens` tokens share: activations, and logits of each token."""
    return tokens * (spec.activations * _ACTIVATION_BYTES + spec.vocab_size * _LOGIT_BYTES)


def plan_cache(
    spec: DecoderShape,
    dtype: KvDtype,
    *,
    kv_cache_gib: float | None,
    max_num_seqs: int,
    max_context_length: int,
    memory_bytes: int,
    may_lower_seqs: bool = False,
    may_lower_context: bool = False,
    weight_bytes: int = 0,
    gpu: GpuBudget | None = None,
    copies: int = 1,
) -> CachePlan:
    """The sizes of the KV cache, and of the recurrent states beside it: one budget for both.

    The budget is `kv_cache_gib`, by default a tenth of the machine's memory, or what one full context and recurrent
    states need, up to a third of the machine's, or, where one full context needs more, what weights leave but for a
    tenth; on GPUs what `gpu` leaves; but no more than `max_num_seqs` full contexts need.

    `may_lower_seqs`, `may_lower_context`: these numbers are defaults, and are lowered (contexts to whole blocks) where
    the recurrent states of all, or one context, do not fit. `copies`: ranks that hold the same key/value head, all in
    this memory. `memory_bytes`: the machine's, of no account where there is a `gpu`.

    Raises CacheTooSmallError where not even one sequence of the longest length fits, or not the states of
    `max_num_seqs`; CacheTooLargeError where `kv_cache_gib` is more than the memory that the weights leave.
    """
    block_bytes = spec.kv_bytes_per_token(dtype) * BLOCK_SIZE * copies
    blocks_of_context = -(-max_context_length // BLOCK_SIZE)
    context, state = blocks_of_context * block_bytes, spec.state_bytes
    left = memory_bytes - weight_bytes if gpu is None else int(gpu.memory.free * gpu.ranks)
    if kv_cache_gib is not None:
        budget = int(kv_cache_gib * GIB)
        _check_fits(kv_cache_gib, budget, left, weight_bytes, gpu)
    elif gpu is not None:
        budget = gpu.cache_bytes
    else:
        least = context + (1 if may_lower_seqs else max_num_seqs) * state
        budget = _default_budget(least, context + _STATE_SHARE * max_num_seqs * state, weight_bytes, memory_bytes)
    if state and may_lower_seqs:
        max_num_seqs = max(1, min(max_num_seqs, (budget - context) // (_STATE_SHARE * state)))
    states = max_num_seqs * state
    num_snapshots = 0
    if state:
        spare = max(0, budget - states - context)
        num_snapshots = min(spare // _SNAPSHOT_SHARE // state, _SNAPSHOTS_PER_SEQUENCE * max_num_seqs)
    num_blocks = max(0, budget - states - num_snapshots * state) // block_bytes
    if may_lower_context and kv_cache_gib is None and gpu is None and 0 < num_blocks < blocks_of_context:
        blocks_of_context, max_context_length = num_blocks, num_blocks * BLOCK_SIZE
    if num_blocks < blocks_of_context:
        taken = (
            f", of which the recurrent states of {max_num_seqs} sequences take {states / GIB:.3g}," if states else ""
        )
        raise CacheTooSmallError(
            f"A KV cache of {budget / GIB:.3g} GiB{taken} holds "
            f"{num_blocks * BLOCK_SIZE} tokens, but one context has up to {max_context_length}, {context / GIB:.3g} "
            f"GiB{'' if gpu is None or kv_cache_gib is not None else f': {gpu}'}. "
            + _advice(
                _more_memory(states + context, left, gpu if kv_cache_gib is None else None),
                has_states=states > 0,
                max_num_seqs=0 if not state or may_lower_seqs else (budget - context) // state,
                max_context_length=num_blocks * BLOCK_SIZE,
            ),
            num_blocks * BLOCK_SIZE,
        )
    if kv_cache_gib is None:
        num_blocks = min(num_blocks, max_num_seqs * blocks_of_context)
    return CachePlan(num_blocks, max_num_seqs, num_snapshots, max_context_length)


def _more_memory(needed: int, left: int, gpu: GpuBudget | None) -> str:
    """Advice that gives the cache `needed` bytes; empty if the memory does not suffice. `gpu`: advise its share."""
    if gpu is not None:
        return "Raise gpu_memory_utilization" if replace(gpu, share=1.0).cache_bytes >= needed else ""
    gib = _round_up(needed / GIB)
    return f"Set kv_cache_gib to at least {gib}" if float(gib) * GIB <= left else ""


def _advice(memory: str, *, has_states: bool, max_num_seqs: int, max_context_length: int) -> str:
    """Advice of what to change, one alone is enough: the memory, or at most so many sequences or tokens."""
    ways = [memory] if memory else []
    if max_num_seqs > 0:
        ways.append(f"set engine.max_num_seqs to at most {max_num_seqs}")
    if max_context_length > 0:
        ways.append(f"set max_context_length to at most {max_context_length}")
    if not ways:
        ways.append("lower engine.max_num_seqs and max_context_length both" if has_states else "set quantization")
        ways.append("take a smaller model or more memory")
    advice = ", or ".join(ways) + "."
    return advice[0].upper() + advice[1:]


def _default_budget(least: int, wanted: int, weight_bytes: int, memory: int) -> int:
    """Bytes of the machine's memory: enough for `wanted`, if that is not too much of it. `least`: bytes of one sequence
    of the longest length."""
    limit = memory - memory // _SPARE_SHARE - weight_bytes
    if least <= memory // _LARGEST_DEFAULT_SHARE:
        limit = min(memory // _LARGEST_DEFAULT_SHARE, limit)
    default = min(memory // _DEFAULT_SHARE, max(0, memory - weight_bytes))
    return max(default, min(wanted, limit))


def _check_fits(kv_cache_gib: float, budget: int, left: int, weight_bytes: int, gpu: GpuBudget | None) -> None:
    if budget <= left:
        return
    problem = f"A KV cache of {kv_cache_gib:g} GiB does not fit"
    if gpu is not None:
        raise CacheTooLargeError(
            f"{problem}: {left / GIB:.1f} GiB are free, {gpu}. Lower kv_cache_gib, or leave it out."
        )
    raise CacheTooLargeError(
        f"{problem} into this machine's memory: it has {(left + weight_bytes) / GIB:.1f} GiB, of which the weights "
        f"take {weight_bytes / GIB:.1f}. Lower kv_cache_gib."
    )


def _round_up(gib: float) -> str:
    """Three decimals, never less than the amount itself."""
    return f"{-(-gib * 1000 // 1) / 1000:.3f}"
