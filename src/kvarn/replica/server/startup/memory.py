"""Memory plan of a decoder over all its ranks. Brings torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kvarn.config.schema import ModelConfig
from kvarn.models import Decoder
from kvarn.replica.server.ranks.parts import layout_of
from kvarn.replica.server.ranks.processes import Loaded
from kvarn.worker.memory import CachePlan, GpuBudget, plan_cache, step_bytes

log = logging.getLogger(__name__)


def plan_memory(model: Decoder, config: ModelConfig, others: Sequence[Loaded]) -> CachePlan:
    """Sizes of the KV cache, the same on each rank: as much as the memory of all ranks has room for."""
    layout, engine, share = layout_of(config), config.engine, config.hardware.gpu_memory_utilization
    memories = [each for each in (model.kernels.device.memory(), *(other.memory for other in others)) if each]
    gpu, held = None, list[Decoder | Loaded]([model, *others])
    if memories:
        least = min(memories, key=lambda memory: memory.usable(share))
        guesses = 0 if config.speculation.chosen == "none" else config.speculation.length
        verified = min(engine.token_budget, engine.max_num_seqs * (1 + guesses))
        beside = step_bytes(model.spec, engine.token_budget, engine.max_num_seqs, verified)
        gpu = GpuBudget(least, share, layout.world_size, beside)
        log.info("GPU memory plan: %s", gpu, extra={"model": config.name})
    return plan_cache(
        model.spec,
        model.kv_dtype,
        kv_cache_gib=config.kv_cache_gib,
        max_num_seqs=engine.max_num_seqs,
        max_context_length=config.max_context_length or model.spec.max_context_length,
        may_lower_seqs="max_num_seqs" not in engine.model_fields_set,
        may_lower_context=config.max_context_length is None,
        weight_bytes=sum(each.layer_bytes + each.head_bytes for each in held),
        gpu=gpu,
        copies=layout.prefill_context_parallel_size * model.spec.cache_copies(layout.tensor_parallel_size),
    )
