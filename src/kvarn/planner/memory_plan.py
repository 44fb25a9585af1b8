"""Division of the memory of a replica's devices, by part. A GPU's memory, as an engine divides it:

| driver | weights by part | step: activations, logits, graphs, scratch | states, snapshots | KV blocks | unused |
|<-------------------------- gpu_memory_utilization of the device --------------------------------------------->|
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from kvarn.config.engine import EngineConfig
from kvarn.costs.cache_plan import CachePlan, StepMemory
from kvarn.costs.device_memory import DRIVER_BYTES
from kvarn.planner.models import PlannedModel
from kvarn.planner.quantity import Part, Quantity
from kvarn.shapes import BLOCK_SIZE, KvDtype
from kvarn.shapes.packing import Dtype, Kernels, Quantization
from kvarn.specs.rank_weights import WeightPart

_STEP_ERROR = 0.5
"""The engine's estimate of a step's memory is on the large side: what it does not need is not used."""
_DRIVER_ERROR = 0.25
_RUNTIME_BYTES = 320 * 1024**2
"""An engine's process on processors without weights: one of a small model holds 270 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSetting:
    """Settings of a replica that its memory follows from, by their names in the configuration where there are some."""

    kernels: Kernels = "gpu"
    dtype: Dtype = "bfloat16"
    quantization: Quantization | None = None
    kv_cache_dtype: KvDtype | Literal["auto"] = "auto"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: bool = False
    max_num_seqs: int | None = None
    """None: the default, which is lowered where recurrent states of so many do not fit."""
    token_budget: int = EngineConfig().token_budget
    max_context_length: int | None = None
    """None: the model's."""
    kv_cache_gib: float | None = None
    gpu_memory_utilization: float = 0.9

    @property
    def ranks(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def sequences(self) -> int:
        return self.max_num_seqs or EngineConfig().max_num_seqs


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Division of the memory of one replica's devices."""

    model: PlannedModel
    setting: ReplicaSetting
    kv_dtype: KvDtype
    weights: Mapping[WeightPart, int]
    """Bytes of the rank that holds most."""
    weight_bytes: int
    """Bytes of all ranks together."""
    step: StepMemory
    device_bytes: int
    cache: CachePlan
    block_bytes: int
    """Bytes of a block in all layers and on all ranks."""
    rank_block_bytes: int
    """Bytes of a block on the rank that holds most of it."""
    rank_state_bytes: int = 0
    """Bytes of a sequence's recurrent states there."""

    @property
    def kv_tokens(self) -> Quantity:
        blocks = self.cache.num_blocks
        return Quantity(
            value=blocks * BLOCK_SIZE,
            unit="tokens",
            formula=f"{blocks:,} blocks of {BLOCK_SIZE} tokens",
            assumption=f"a device of {self.device_bytes / 1e9:,.4g} GB: drivers report some more than data sheets"
            if self.setting.kernels == "gpu"
            else "",
            error=0.0,
        )

    def users(self, context: int) -> Quantity:
        """Sequences of `context` tokens that the cache holds at once."""
        each = -(-context // BLOCK_SIZE)
        count = self.cache.num_blocks // each
        if self.model.spec.has_states:
            count = min(count, self.cache.max_num_seqs)
        return Quantity(
            value=count,
            unit="sequences",
            formula=f"{self.cache.num_blocks:,} blocks / {each:,} blocks of {context:,} tokens",
            assumption="no prefix is shared",
            error=0.0,
        )

    def largest_batch(self, length: float) -> Quantity:
        """Sequences of a mean length that run at once: as many as the cache holds, up to `max_num_seqs`."""
        held = self.cache.num_blocks * BLOCK_SIZE / (length + BLOCK_SIZE / 2)
        return Quantity(
            value=min(int(held), self.cache.max_num_seqs),
            unit="sequences",
            formula=f"min({self.kv_tokens.value:,.0f} tokens / ({length:,.0f} + half a block), max_num_seqs "
            f"{self.cache.max_num_seqs})",
            assumption="no prefix is shared",
            error=0.0,
        )

    @property
    def parts(self) -> tuple[Part, ...]:
        """Bytes of the fullest device. They add up to what the engine may take of it."""
        named = [*self._fixed(), *self._cached()]
        usable = int(self.device_bytes * self._share)
        left = usable - int(sum(part.quantity.value for part in named))
        unused = num_bytes(left, f"{usable:,} B - all others", "what max_num_seqs full contexts do not need")
        return (*named, Part("unused", unused))

    @property
    def _share(self) -> float:
        return self.setting.gpu_memory_utilization if self.setting.kernels == "gpu" else 1.0

    @property
    def _form(self) -> str:
        stored = None if self.model.stored is None else self.model.stored.packed_method
        return stored or self.setting.quantization or self.setting.dtype

    def _fixed(self) -> Iterator[Part]:
        for part, count in self.weights.items():
            form = self._form
            yield Part(part, num_bytes(count, f"weights as the engine packs them ({form}), scales and biases included"))
        if self.setting.kernels == "cpu":
            yield Part("runtime", num_bytes(_RUNTIME_BYTES, "", "a process with torch and a tokenizer", _DRIVER_ERROR))
            return
        driver = "a process's share of a GPU: context and code of kernels"
        yield Part("driver", num_bytes(DRIVER_BYTES, "", driver, _DRIVER_ERROR))
        of = {
            "activations": f"({self.setting.token_budget} + {self.setting.sequences} tokens) x "
            f"{self.model.spec.activations:,} numbers x 16 B",
            "logits": f"rows x {self.model.spec.vocab_size:,} x 8 B",
            "graphs": "captured steps x layers x kernels x 32 KiB",
            "scratch": "memory of kernels",
        }
        for name, formula in of.items():
            large = "the engine's own estimate, on the large side"
            yield Part(name, num_bytes(getattr(self.step, name), formula, large, _STEP_ERROR))

    def _cached(self) -> Iterator[Part]:
        plan, state = self.cache, self.rank_state_bytes
        if state:
            for name, count in (("states", plan.max_num_seqs), ("snapshots", plan.num_snapshots)):
                yield Part(name, num_bytes(count * state, f"{count} x {state:,} B of a sequence"))
        formula = f"{plan.num_blocks:,} blocks x {self.rank_block_bytes:,} B"
        yield Part("kv_cache", num_bytes(plan.num_blocks * self.rank_block_bytes, formula))


def num_bytes(value: float, formula: str, assumption: str = "", error: float = 0.0) -> Quantity:
    return Quantity(value=value, unit="B", formula=formula, assumption=assumption, error=error)
