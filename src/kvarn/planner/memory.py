"""Memory of a replica on devices: what fits, planned by the engine's own functions without a device."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from kvarn.costs.cache_plan import (
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
from kvarn.planner.memory_plan import MemoryPlan as MemoryPlan
from kvarn.planner.memory_plan import ReplicaSetting as ReplicaSetting
from kvarn.planner.memory_plan import num_bytes
from kvarn.planner.models import PlannedModel
from kvarn.planner.quantity import Quantity
from kvarn.shapes import BLOCK_SIZE, KvDtype
from kvarn.shapes.attention import AttentionKind, GroupedDimensions
from kvarn.specs.errors import ModelError
from kvarn.specs.held import cache_type
from kvarn.specs.place import ParallelError, Place, Stage, even_ranks
from kvarn.specs.weight_bytes import WeightForms, product_bytes, weight_bytes

GB = 1e9


class ModelTooLargeError(PlanError):
    """The model, or one sequence of the longest length, does not fit."""

    def __init__(self, message: str, *, tokens: int = 0) -> None:
        super().__init__(message)
        self.tokens = tokens
        """Tokens of the longest sequence that would fit; 0: none."""


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
    step = step_memory(spec, setting.token_budget, sequences)
    ranks = even_ranks(spec, kv_dtype, setting.ranks, setting.pipeline_parallel)
    gpu = _gpu_budget(setting, device_bytes, ranks, sum(fullest.values()), sum(step))
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
    rank_block_bytes, rank_state_bytes = _rank_bytes(model, setting, kv_dtype)
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
        rank_block_bytes=rank_block_bytes,
        rank_state_bytes=rank_state_bytes,
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
    return num_bytes(spec.kv_bytes_per_token(kv_dtype), " + ".join(terms))


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
    if setting.kernels == "gpu" and setting.dtype != "bfloat16":
        raise ValueError("the kernels of GPUs multiply bfloat16: set dtype to bfloat16")
    wanted: KvDtype | Literal["auto"] = setting.kv_cache_dtype
    unknown = "fp8" if setting.kernels == "cpu" else "int8"
    if wanted == unknown:
        raise ValueError(f"a KV cache in {wanted} needs the kernels of {'GPUs' if wanted == 'fp8' else 'processors'}")
    stored = None if model.stored is None else model.stored.packed_method
    return cache_type(model.spec, setting.dtype, stored or setting.quantization, wanted)


def _gpu_budget(setting: ReplicaSetting, device_bytes: int, ranks: float, weights: int, step: int) -> GpuBudget | None:
    if setting.kernels == "cpu":
        return None
    own = weights + DRIVER_BYTES
    memory = DeviceMemory(device_bytes, max(0, device_bytes - own), own)
    return GpuBudget(memory, setting.gpu_memory_utilization, ranks, step)


def _check_weights(
    model: PlannedModel, setting: ReplicaSetting, device_bytes: int, fullest: int, total: int, gpu: GpuBudget | None
) -> None:
    usable = device_bytes if gpu is None else int(device_bytes * setting.gpu_memory_utilization)
    beside = 0 if gpu is None else DRIVER_BYTES + gpu.step_bytes
    if fullest + beside < usable:
        return
    share = "" if gpu is None else f" x {setting.gpu_memory_utilization:g}"
    step = f" and {beside / GB:.1f} GB for the driver and a step" if beside else ""
    each = f" ({fullest / GB:.1f} GB on each of {setting.ranks} devices)" if setting.ranks > 1 else ""
    raise ModelTooLargeError(
        f"{model.name}: weights of {total / GB:.1f} GB{each}{step} do not fit into {usable / GB:.1f} GB "
        f"({device_bytes / GB:.0f} GB{share}) of a device: take more devices, quantised weights, or devices with more "
        "memory"
    )


def _rank_bytes(model: PlannedModel, setting: ReplicaSetting, kv_dtype: KvDtype) -> tuple[int, int]:
    """Bytes of a block and of a sequence's recurrent states, each on a rank of the stage that holds most of it."""
    spec, count = model.spec, setting.pipeline_parallel
    stages = [Stage(index, count).layers(spec.num_layers) for index in range(count)]
    parts = [replace(spec, layers=spec.layers[stage.start : stage.stop]) for stage in stages]
    copies = spec.cache_copies(setting.tensor_parallel)
    block = max(part.kv_bytes_per_token(kv_dtype) for part in parts) * BLOCK_SIZE * copies
    return block // setting.tensor_parallel, max(part.state_bytes for part in parts) // setting.tensor_parallel
