"""Memory plan of a decoder over all its ranks, and what of its configuration follows from it. Brings torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kvarn.config.model import ModelConfig
from kvarn.costs.cache_plan import CachePlan, GpuBudget, plan_cache, step_bytes
from kvarn.kernels.device.memory import usable_memory
from kvarn.models import Decoder, UnsupportedModelError
from kvarn.replica.server.ranks.parts import layout_of
from kvarn.replica.server.ranks.processes import Loaded
from kvarn.specs.place import even_ranks

_MIB = 1024**2
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
        ranks = even_ranks(model.spec, model.kv_dtype, layout.world_size, layout.pipeline_parallel_size)
        gpu = GpuBudget(least, share, ranks, beside)
        log.info("GPU memory plan: %s", gpu, extra={"model": config.name})
    return plan_cache(
        model.spec,
        model.kv_dtype,
        kv_cache_gib=config.kv_cache_gib,
        max_num_seqs=engine.max_num_seqs,
        max_context_length=config.max_context_length or model.spec.max_context_length,
        may_lower_seqs="max_num_seqs" not in engine.model_fields_set,
        may_lower_context=config.max_context_length is None,
        memory_bytes=usable_memory(),
        weight_bytes=sum(each.layer_bytes + each.head_bytes for each in held),
        gpu=gpu,
        copies=layout.prefill_context_parallel_size * model.spec.cache_copies(layout.tensor_parallel_size),
    )


def check_recurrent(model: Decoder, config: ModelConfig) -> None:
    """Raise UnsupportedModelError if a model has recurrent states and a setting that does not work with them."""
    if not model.spec.has_states:
        return
    problems = {
        "kv_tiers": (config.kv_tiers is not None, "blocks without the states at their end cannot be begun with"),
        "disaggregation": (config.disaggregation is not None, "states are not sent to other engines"),
        "prefill_context_parallel_size": (config.prefill_context_parallel_size > 1, "a state is that of all tokens"),
        "speculation": (
            config.speculation.method not in ("auto", "none"),
            "states cannot go back behind a guess that was wrong",
        ),
    }
    for setting, (is_set, reason) in problems.items():
        if is_set:
            raise UnsupportedModelError(
                f"{config.name} has layers with recurrent states ({model.spec.architecture}), with which `{setting}` "
                f"cannot be used: {reason}. Leave it out."
            )


def with_planned_states(model: Decoder, config: ModelConfig, max_num_seqs: int, num_snapshots: int) -> ModelConfig:
    """The configuration with as many sequences as the memory has room for; logs their number and that of snapshots."""
    if not model.spec.has_states:
        return config
    extra = {"model": config.name}
    if max_num_seqs < config.engine.max_num_seqs:
        log.warning(
            f"engine.max_num_seqs is {max_num_seqs} in place of {config.engine.max_num_seqs}: the KV cache has no room "
            "for more recurrent states beside one full context. Raise kv_cache_gib or lower max_context_length",
            extra=extra,
        )
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"max_num_seqs": max_num_seqs})})
    log.info(
        f"recurrent states of {max_num_seqs} sequences and {num_snapshots} snapshots for the prefix cache, "
        f"{model.spec.state_bytes / _MIB:.1f} MiB each",
        extra=extra,
    )
    return config


def with_planned_context(model: Decoder, config: ModelConfig, max_context_length: int) -> ModelConfig:
    trained = model.spec.max_context_length
    if config.max_context_length is None and max_context_length < trained:
        log.warning(
            f"max_context_length is {max_context_length} in place of {trained}, for which the model was trained: the "
            "memory has no room for the KV cache of more tokens. Longer prompts are refused. Set max_context_length to "
            f"{max_context_length} or less if that is meant, else set quantization or kv_cache_dtype, or add memory",
            extra={"model": config.name},
        )
    return config.model_copy(update={"max_context_length": max_context_length})
