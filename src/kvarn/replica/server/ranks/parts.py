"""Division of a model among ranks: the device, weights, threads and executor of each. Brings torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch

from kvarn.config.model import ModelConfig
from kvarn.kernels.dispatch import kernels_for
from kvarn.models import CausalEncoder, Decoder, Encoder, load_model
from kvarn.models.loading.checkpoint import Progress
from kvarn.models.parallel import Parallel
from kvarn.replica.server.cpu import kernel_threads, usable_cores
from kvarn.replica.spec import ReplicaSpec
from kvarn.specs.place import ParallelError, Stage
from kvarn.worker.async_executor import AsyncExecutor
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.ranks.collectives import RankGroup, RankLayout
from kvarn.worker.ranks.context_parallel import ContextParallel


def layout_of(config: ModelConfig) -> RankLayout:
    return RankLayout(config.tensor_parallel_size, config.pipeline_parallel_size, config.prefill_context_parallel_size)


def context_of(config: ModelConfig, rank: int, group: RankGroup) -> ContextParallel | None:
    layout = layout_of(config)
    size = layout.prefill_context_parallel_size
    return ContextParallel(layout.context(rank), size, group.gather_context) if size > 1 else None


def device_of(config: ModelConfig, rank: int) -> torch.device:
    """Device of a rank; each rank has an accelerator of its own. Raises `ParallelError` where there are fewer."""
    place, ranks = kernels_for(config.kernels, config.device).device.torch_device, layout_of(config).world_size
    accelerator = torch.accelerator.current_accelerator()
    if ranks == 1 or accelerator is None or place.type != accelerator.type:
        return place
    count = torch.accelerator.device_count()
    if count < ranks:
        raise ParallelError(
            f"{config.name} is divided among {ranks} processes, but there are {count} {place.type} devices: lower "
            "tensor_parallel_size, pipeline_parallel_size or prefill_context_parallel_size, or set `device`"
        )
    torch.accelerator.set_device_index(rank)
    return torch.device(place.type, rank)


def _packed_cache(config: ModelConfig) -> Path | Literal["auto"] | None:
    match config.packed_cache:
        case "off":
            return None
        case "auto":
            return "auto"
        case directory:
            return Path(directory).expanduser()


def load_part(
    spec: ReplicaSpec,
    rank: int,
    group: RankGroup | None,
    expert_load: Mapping[int, Sequence[int]],
    progress: Progress | None = None,
) -> Decoder | Encoder | CausalEncoder:
    """A rank's part of the model, or all of it where `group` is None. Raises what `load_model` does, and
    `ParallelError`."""
    config, layout = spec.model_config, layout_of(spec.model_config)
    torch.set_num_threads(_threads(config, usable_cores()))  # for loading; see below for serving
    stage = Stage(layout.stage(rank), layout.pipeline_parallel_size)
    parallel = Parallel(
        layout.shard(rank),
        layout.tensor_parallel_size,
        group,
        fixed_sums=config.tensor_parallel_invariant,
        expert_parallel=config.expert_parallel,
        expert_load=expert_load,
        redundant_experts=config.experts.num_redundant,
        stage=stage,
        neighbours=group,
    )
    model = load_model(
        Path(spec.directory),
        device=str(device_of(config, rank)),
        dtype=config.dtype,
        progress=progress,
        max_context_length=config.max_context_length,
        quantization=config.quantization,
        kv_cache_dtype=config.kv_cache_dtype,
        kernels=config.kernels,
        packed_cache=_packed_cache(config),
        parallel=parallel,
        kind=config.kind,
        gpu_memory_utilization=config.hardware.gpu_memory_utilization,
    )
    if group is not None and not isinstance(model, Decoder):
        raise ParallelError(
            f"{config.name} embeds texts: leave out its tensor_parallel_size, pipeline_parallel_size and "
            "prefill_context_parallel_size"
        )
    held = model.layer_bytes if isinstance(model, Decoder) else model.spec.num_parameters * model.dtype.itemsize
    parts = layout.world_size // layout.prefill_context_parallel_size
    torch.set_num_threads(_threads(config, kernel_threads(held * parts)))
    return model


def executor_type(model: Decoder, config: ModelConfig) -> type[InProcessExecutor]:
    """Type of every rank's executor: asynchronous if devices compute beside the host and all ranks have all logits."""
    layout = layout_of(config)
    have_logits = layout.pipeline_parallel_size == 1 and layout.prefill_context_parallel_size == 1
    return AsyncExecutor if model.kernels.device.is_asynchronous and have_logits else InProcessExecutor


def _threads(config: ModelConfig, threads: int) -> int:
    return max(1, (config.threads or threads) // layout_of(config).world_size)


def keeps_blocks(spec: ReplicaSpec) -> bool:
    """Whether blocks are kept beyond the KV cache, for later or for another engine."""
    return spec.model_config.kv_tiers is not None or spec.role != "both"
