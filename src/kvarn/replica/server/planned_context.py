"""A context shorter than the trained one, where the memory has no room for more. Brings torch."""

from __future__ import annotations

import logging

from kvarn.config.schema import ModelConfig
from kvarn.models import Decoder

log = logging.getLogger(__name__)


def with_planned_context(model: Decoder, config: ModelConfig, max_context_length: int) -> ModelConfig:
    """The configuration with a context as long as there is memory for."""
    trained = model.spec.max_context_length
    if config.max_context_length is None and max_context_length < trained:
        log.warning(
            f"max_context_length is {max_context_length} in place of {trained}, for which the model was trained: the "
            "memory has no room for the KV cache of more tokens. Longer prompts are refused. Set max_context_length to "
            f"{max_context_length} or less if that is meant, else set quantization or kv_cache_dtype, or add memory",
            extra={"model": config.name},
        )
    return config.model_copy(update={"max_context_length": max_context_length})
