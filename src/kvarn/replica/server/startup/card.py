"""Model card of an engine."""

from __future__ import annotations

from typing import Any

from kvarn.models import CausalEncoder, Decoder, Encoder
from kvarn.replica.server.startup.phases import Phases
from kvarn.wire.messages import ModelCard


def model_card(model: Decoder | Encoder | CausalEncoder, phases: Phases, **fields: Any) -> ModelCard:
    """Describe a loaded model; `fields` are those of its kind."""
    return ModelCard(
        architecture=model.spec.architecture,
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=model.quantization,
        kernels=model.kernels.name,
        vocab_size=model.spec.vocab_size,
        num_parameters=model.spec.num_parameters,
        start_s=phases.seconds,
        **fields,
    )
