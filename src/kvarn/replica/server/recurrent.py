"""What a model with recurrent states is served without. Brings torch."""

from __future__ import annotations

from kvarn.config.schema import ModelConfig
from kvarn.models import Decoder, UnsupportedModelError


def check_recurrent(model: Decoder, config: ModelConfig) -> None:
    """Raise UnsupportedModelError where a model has recurrent states, and its configuration asks for what cannot be
    done with them."""
    if model.spec.delta is None:
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
