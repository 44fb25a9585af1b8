"""Phases of an engine's start, and the model card that tells their seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvarn.clock import SYSTEM_CLOCK
from kvarn.models import CausalEncoder, Decoder, Encoder
from kvarn.replica.spec import ReportProgress
from kvarn.wire.messages import ModelCard


class Phases:
    def __init__(self, report: ReportProgress) -> None:
        self.seconds: dict[str, float] = {}
        self._report = report

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = SYSTEM_CLOCK.now()
        self._report(phase, 0.0)
        yield
        self.seconds[phase] = SYSTEM_CLOCK.now() - began


def model_card(model: Decoder | Encoder | CausalEncoder, phases: Phases, **fields: Any) -> ModelCard:
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
