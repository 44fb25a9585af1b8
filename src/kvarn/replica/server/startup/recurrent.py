"""Limits of models with recurrent states. Brings torch."""

from __future__ import annotations

import logging

from kvarn.config.schema import ModelConfig
from kvarn.models import Decoder, UnsupportedModelError

_MIB = 1024**2
log = logging.getLogger(__name__)


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
