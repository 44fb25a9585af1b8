"""Memory of a replica by part, and what its KV cache holds: the engine's own functions, without a device.

A GPU's memory, as an engine divides it:

    | driver | weights by part | step: activations, logits, graphs, scratch | states, snapshots | KV blocks | unused |
    |<-------------------------- gpu_memory_utilization of the device --------------------------------------------->|
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from kvarn.config.engine import EngineConfig
from kvarn.costs.cache_plan import (
    CachePlan,
    CachePlanError,
    CacheTooSmallError,
    GpuBudget,
    StepMemory,
    plan_cache,
    step_memory,
)
from kvarn.costs.decoder import DecoderCosts, loaded_costs
from kvarn.costs.device_memory import DRIVER_BYTES, DeviceMemory
from kvarn.planner.errors import PlanError
from kvarn.planner.models import PlannedModel
from kvarn.planner.quantity import Part, Quantity
from kvarn.shapes import BLOCK_SIZE, KvDtype
from kvarn.shapes.attention import AttentionKind, GroupedDimensions
from kvarn.shapes.packing import Dtype, Kernels, Quantization
from kvarn.specs.errors import ModelError
from kvarn.specs.held import cache_type
from kvarn.specs.place import ParallelError, Place, Stage
from kvarn.specs.rank_weights import WeightPart
from kvarn.specs.weight_bytes import WeightForms, product_bytes, weight_bytes

GB = 1e9
_STEP_ERROR = 0.5
"""The engine's estimate of a step's memory is on the large side: what it does not need is not used."""
_DRIVER_ERROR = 0.25
_RUNTIME_BYTES = 640 * 1024**2
"""A process with torch, its libraries and a tokenizer, on processors."""


class ModelTooLargeError(PlanError):
    """The model, or one sequence of the longest length, does not fit."""

    def __init__(self, message: str, *, tokens: int = 0) -> None:
        super().__init__(message)
        self.tokens = tokens
        """Tokens of the longest sequence that would fit; 0: none."""


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
    guesses: int = 0
    """Tokens that a sequence proposes in a step, with speculation."""

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

    @property
    def kv_tokens(self) -> Quantity:
        """Tokens that the KV cache holds."""
        blocks = self.cache.num_blocks
        return Quantity(
            value=blocks * BLOCK_SIZE, unit="tokens", formula=f"{blocks:,} blocks of {BLOCK_SIZE} tokens", error=0.0
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
        unused = _bytes(left, f"{usable:,} B - all others", "what max_num_seqs full contexts do not need")
        return (*named, Part("unused", unused))

    @property
    def _share(self) -> float:
        return self.setting.gpu_memory_utilization if self.setting.kernels == "gpu" else 1.0

    def _fixed(self) -> Iterator[Part]:
        for part, count in self.weights.items():
            form = self.setting.quantization or self.setting.dtype
            yield Part(part, _bytes(count, f"weights as the engine packs them ({form}), scales and biases included"))
        if self.setting.kernels == "cpu":
            yield Part("runtime", _bytes(_RUNTIME_BYTES, "", "a process with torch and a tokenizer", _DRIVER_ERROR))
            return
        driver = "a process's share of a GPU: context and code of kernels"
        yield Part("driver", _bytes(DRIVER_BYTES, "", driver, _DRIVER_ERROR))
        of = {
            "activations": f"({self.setting.token_budget} + {self.setting.sequences} tokens) x "
            f"{self.model.spec.activations:,} numbers x 16 B",
            "logits": f"rows x {self.model.spec.vocab_size:,} x 8 B",
            "graphs": "captured steps x layers x kernels x 32 KiB",
            "scratch": "memory of kernels",
        }
        for name, formula in of.items():
            large = "the engine's own estimate, on the large side"
            yield Part(name, _bytes(getattr(self.step, name), formula, large, _STEP_ERROR))

    def _cached(self) -> Iterator[Part]:
        plan, ranks = self.cache, self.setting.ranks
        state = self.model.spec.state_bytes
        if state:
            of_one = f"{state:,} B a sequence, over {ranks} ranks"
            yield Part("states", _bytes(plan.max_num_seqs * state // ranks, f"{plan.max_num_seqs} x {of_one}"))
            yield Part("snapshots", _bytes(plan.num_snapshots * state // ranks, f"{plan.num_snapshots} x {of_one}"))
        formula = f"{plan.num_blocks:,} blocks x {self.rank_block_bytes:,} B"
        yield Part("kv_cache", _bytes(plan.num_blocks * self.rank_block_bytes, formula))


def plan_memory(model: PlannedModel, setting: ReplicaSetting, device_bytes: int) -> MemoryPlan:
    """The memory of a replica on devices of `device_bytes` (a machine's memory for processors).

    Raises ModelTooLargeError where the model or one longest sequence does not fit, PlanError where the model cannot be
    divided or held so.
    """
    forms = model.forms(setting.kernels, setting.dtype, setting.quantization)
    try:
        of_ranks = [weight_bytes(model.spec, place, forms) for place in _places(setting)]
        kv_dtype = _kv_dtype(model, setting)
    except (ModelError, ParallelError, ValueError) as error:
        raise PlanError(f"{model.name}: {error}") from error
    fullest = max(of_ranks, key=lambda weights: sum(weights.values()))
    spec, sequences = model.spec, setting.sequences
    verified = min(setting.token_budget, sequences * (1 + setting.guesses))
    step = step_memory(spec, setting.token_budget, sequences, verified)
    gpu = _gpu_budget(setting, device_bytes, sum(fullest.values()), sum(step))
    total = sum(sum(weights.values()) for weights in of_ranks) * setting.ranks // len(of_ranks)
    _check_weights(model, setting, device_bytes, sum(fullest.values()), total, gpu)
    copies = spec.cache_copies(setting.tensor_parallel)
    read = 0 if gpu is not None else sum(product_bytes(spec, Place(), forms))
    try:
        cache = plan_cache(
            spec,
            kv_dtype,
            kv_cache_gib=setting.kv_cache_gib,
            max_num_seqs=sequences,
            max_context_length=min(setting.max_context_length or spec.max_context_length, spec.max_context_length),
            memory_bytes=device_bytes,
            may_lower_seqs=setting.max_num_seqs is None,
            may_lower_context=setting.max_context_length is None,
            weight_bytes=read,
            gpu=gpu,
            copies=copies,
        )
    except CacheTooSmallError as error:
        raise ModelTooLargeError(f"{model.name}: {error}", tokens=error.tokens) from error
    except CachePlanError as error:
        raise ModelTooLargeError(f"{model.name}: {error}") from error
    return MemoryPlan(
        model=model,
        setting=setting,
        kv_dtype=kv_dtype,
        weights=fullest,
        weight_bytes=total,
        step=step if gpu is not None else StepMemory(0, 0, 0, 0),
        device_bytes=device_bytes,
        cache=cache,
        block_bytes=spec.kv_bytes_per_token(kv_dtype) * BLOCK_SIZE * copies,
        rank_block_bytes=_rank_block_bytes(model, setting, kv_dtype),
    )


def kv_bytes_per_token(model: PlannedModel, kv_dtype: KvDtype = "bfloat16") -> Quantity:
    """Bytes of a token in the KV cache, all layers together. A sliding window frees nothing: the engine keeps blocks
    that its layers do not read."""
    spec = model.spec
    counts: dict[AttentionKind, int] = {}
    for layer in spec.layers:
        counts[layer.attention] = counts.get(layer.attention, 0) + 1
    terms = []
    for kind, layers in counts.items():
        each = kind.cache_bytes_per_token(kv_dtype)
        if isinstance(kind, GroupedDimensions):
            heads = f"2 x {kind.num_kv_heads} heads x {each // (2 * kind.num_kv_heads)} B"
            terms.append(f"{layers} layers x {heads}")
        elif each:
            terms.append(f"{layers} layers x {each} B")
    return _bytes(spec.kv_bytes_per_token(kv_dtype), " + ".join(terms))


def kv_bytes_read(model: PlannedModel, context: int, kv_dtype: KvDtype = "bfloat16") -> int:
    """Bytes of keys and values that a sequence of `context` tokens reads for its next token: of a layer with a sliding
    window, the window's."""
    kinds = (layer.attention for layer in model.spec.layers)
    return sum(min(context, kind.sliding_window or context) * kind.cache_bytes_per_token(kv_dtype) for kind in kinds)


def decoder_costs(model: PlannedModel, forms: WeightForms, kv_dtype: KvDtype) -> DecoderCosts:
    """Bytes and operations of steps of the whole model, weights as they are held (`Decoder.costs`)."""
    layers, head = product_bytes(model.spec, Place(), forms)
    of_token = model.spec.kv_bytes_per_token(kv_dtype)
    return loaded_costs(model.spec, layer_bytes=layers, head_bytes=head, kv_bytes_per_token=of_token)


def _places(setting: ReplicaSetting) -> list[Place]:
    """Ranks whose weights may differ: of each stage, all or the first, which has the largest part of each layer."""
    ranks = range(setting.tensor_parallel if setting.expert_parallel else 1)
    return [
        Place(
            rank,
            setting.tensor_parallel,
            expert_parallel=setting.expert_parallel,
            stage=Stage(stage, setting.pipeline_parallel),
        )
        for stage in range(setting.pipeline_parallel)
        for rank in ranks
    ]


def _kv_dtype(model: PlannedModel, setting: ReplicaSetting) -> KvDtype:
    wanted: KvDtype | Literal["auto"] = setting.kv_cache_dtype
    unknown = "fp8" if setting.kernels == "cpu" else "int8"
    if wanted == unknown:
        raise ValueError(f"a KV cache in {wanted} needs the kernels of {'GPUs' if wanted == 'fp8' else 'processors'}")
    quantized = setting.quantization or (model.stored.quant_method if model.stored else None)
    widened = ("fp8", "mxfp4")
    return cache_type(model.spec, setting.dtype, None if quantized in widened else quantized, wanted)


def _gpu_budget(setting: ReplicaSetting, device_bytes: int, weights: int, step: int) -> GpuBudget | None:
    if setting.kernels == "cpu":
        return None
    own = weights + DRIVER_BYTES
    memory = DeviceMemory(device_bytes, max(0, device_bytes - own), own)
    return GpuBudget(memory, setting.gpu_memory_utilization, setting.ranks, step)


def _check_weights(
    model: PlannedModel, setting: ReplicaSetting, device_bytes: int, fullest: int, total: int, gpu: GpuBudget | None
) -> None:
    usable = device_bytes if gpu is None else int(device_bytes * setting.gpu_memory_utilization)
    beside = 0 if gpu is None else DRIVER_BYTES + gpu.step_bytes
    if fullest + beside < usable:
        return
    share = "" if gpu is None else f" x {setting.gpu_memory_utilization:g}"
    step = f" and {beside / GB:.1f} GB for the driver and a step" if beside else ""
    raise ModelTooLargeError(
        f"{model.name}: weights of {total / GB:.1f} GB take {fullest / GB:.1f} GB{step} of each of {setting.ranks} x "
        f"{device_bytes / GB:.0f} GB{share} = {usable / GB:.1f} GB: take more devices, quantised weights, or devices "
        "with more memory"
    )


def _rank_block_bytes(model: PlannedModel, setting: ReplicaSetting, kv_dtype: KvDtype) -> int:
    spec, count = model.spec, setting.pipeline_parallel
    stages = [Stage(index, count).layers(spec.num_layers) for index in range(count)]
    parts = [replace(spec, layers=spec.layers[stage.start : stage.stop]) for stage in stages]
    copies = spec.cache_copies(setting.tensor_parallel)
    whole = max(part.kv_bytes_per_token(kv_dtype) for part in parts) * BLOCK_SIZE * copies
    return whole // setting.tensor_parallel


def _bytes(value: float, formula: str, assumption: str = "", error: float = 0.0) -> Quantity:
    return Quantity(value=value, unit="B", formula=formula, assumption=assumption, error=error)
