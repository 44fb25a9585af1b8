"""Parts of a device's peaks that the engine reaches, and what it spends beside them.

The figures for GPUs are fitted to Kvarn's own times on H100s and judged on those of an H200
(`python -m benchmarks.planner_accuracy`, docs/internals/planner_accuracy.md); those for processors are assumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvarn.planner.devices import Device
from kvarn.planner.request import WeightFormat
from kvarn.shapes import KvDtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Parts are of the vendor's peaks."""

    layer_s: float
    """Seconds of a layer beside its bytes and operations: launches, and reading that has not begun."""
    prompt_token_s: float
    """Seconds of the host for a prompt's token."""
    read: dict[WeightFormat, float]
    """Part of the bandwidth at which weights are read."""
    products: dict[WeightFormat, float]
    """Part of the peak of bfloat16 at which products of many rows run."""
    cache: dict[KvDtype, float]
    """Part of the bandwidth at which keys and values are read; also holds what else a row costs."""
    attention: float
    """Part of the peak at which the attention of prompts runs."""
    link: float = 0.8
    """Part of a link's rate; assumed."""
    exchange_s: float = 20e-6
    """Seconds of one exchange between ranks beside its bytes; assumed."""
    uncaptured_s: float = 0.0
    """Seconds of a layer more where several ranks share it, since its steps are not captured; assumed."""
    note: str = ""


GPU = Efficiency(
    layer_s=30e-6,
    prompt_token_s=3.1e-6,
    read={"plain": 0.92, "fp8": 0.74, "int8": 0.75, "int4": 0.575},
    products={"plain": 0.70, "fp8": 0.315, "int8": 0.33, "int4": 0.32},
    cache={"bfloat16": 0.76, "fp8": 0.41, "int8": 0.41, "float32": 0.76},
    attention=0.30,
    uncaptured_s=60e-6,
    note="fitted to the engine's steps on H100s",
)
PROCESSOR = Efficiency(
    layer_s=10e-6,
    prompt_token_s=3.1e-6,
    read={"plain": 0.75, "fp8": 0.75, "int8": 0.75, "int4": 0.65},
    products={"plain": 0.5, "fp8": 0.5, "int8": 0.8, "int4": 0.8},
    cache={"bfloat16": 0.6, "fp8": 0.6, "int8": 0.6, "float32": 0.6},
    attention=0.25,
    exchange_s=50e-6,
    note="assumed: the engine's kernels were timed on other processors",
)

_STEP_ERRORS = {"measured": 0.17, "runs": 0.30, "no": 0.40}
_PROCESSOR_ERROR = 0.50
_RANKS_ERROR = 0.35
"""Error of what several ranks add, relative to the step: no such step was ever timed."""

_PROMPT_ERROR = 0.27
"""Further error of steps with prompts: with that of steps that decode 32 %, the largest on an H200."""


@dataclass(frozen=True, slots=True)
class ErrorBand:
    """Relative error of a step's time, and the sentence that tells where it is from."""

    value: float
    reason: str


def efficiency_of(device: Device) -> Efficiency:
    return PROCESSOR if device.kind == "cpu" else GPU


def step_error(device: Device, ranks: int, fit_error: float = 0.0) -> ErrorBand:
    """The error to expect of a predicted step: independent parts, added as squares."""
    if device.kind == "cpu":
        parts, reason = [_PROCESSOR_ERROR], "efficiencies of processors are assumed"
    else:
        parts = [_STEP_ERRORS[device.engine]]
        reason = {
            "measured": "largest error on an H200 of the model fitted on H100s",
            "runs": "not timed on this device: efficiencies of an H100",
            "no": "Kvarn has no kernels for this device: figures of an engine as efficient as Kvarn on an H100",
        }[device.engine]
    if ranks > 1:
        parts.append(_RANKS_ERROR)
        reason += "; several ranks were never timed"
    if fit_error:
        parts.append(fit_error)
    return ErrorBand(math.sqrt(sum(part * part for part in parts)), reason)


def prompt_error(steps: ErrorBand) -> ErrorBand:
    """The error of a predicted step of prompts, from that of steps that decode."""
    return ErrorBand(math.hypot(steps.value, _PROMPT_ERROR), f"{steps.reason}; prompts are less sure than decodes")
