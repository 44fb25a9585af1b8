"""Turns plans into tokens: the executors, the sampler, KV-cache sizing.

Names are imported when they are used: the modelled executor needs no torch, most others do.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvarn.worker.async_executor import AsyncExecutor
    from kvarn.worker.encoder_runner import EncoderRunner
    from kvarn.worker.errors import (
        CacheTooLargeError,
        CacheTooSmallError,
        InvalidLogitsError,
        InvalidSamplingError,
        PlanError,
        ReplayAllocationError,
        WorkerError,
    )
    from kvarn.worker.executor import InProcessExecutor
    from kvarn.worker.memory import GpuBudget, plan_cache, step_bytes
    from kvarn.worker.modelled import ModelledExecutor
    from kvarn.worker.proposers.draft import DraftProposer
    from kvarn.worker.proposers.eagle import EagleProposer
    from kvarn.worker.proposers.ngram import NgramProposer

_MODULES = {
    "AsyncExecutor": "async_executor",
    "CacheTooLargeError": "errors",
    "CacheTooSmallError": "errors",
    "DraftProposer": "proposers.draft",
    "EagleProposer": "proposers.eagle",
    "EncoderRunner": "encoder_runner",
    "GpuBudget": "memory",
    "InProcessExecutor": "executor",
    "InvalidLogitsError": "errors",
    "InvalidSamplingError": "errors",
    "ModelledExecutor": "modelled",
    "NgramProposer": "proposers.ngram",
    "PlanError": "errors",
    "ReplayAllocationError": "errors",
    "WorkerError": "errors",
    "plan_cache": "memory",
    "step_bytes": "memory",
}

__all__ = [
    "AsyncExecutor",
    "CacheTooLargeError",
    "CacheTooSmallError",
    "DraftProposer",
    "EagleProposer",
    "EncoderRunner",
    "GpuBudget",
    "InProcessExecutor",
    "InvalidLogitsError",
    "InvalidSamplingError",
    "ModelledExecutor",
    "NgramProposer",
    "PlanError",
    "ReplayAllocationError",
    "WorkerError",
    "plan_cache",
    "step_bytes",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
