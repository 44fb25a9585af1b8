"""Turns plans into tokens: the executor, the sampler, KV-cache sizing."""

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
from kvarn.worker.proposers.draft import DraftProposer
from kvarn.worker.proposers.eagle import EagleProposer
from kvarn.worker.proposers.ngram import NgramProposer

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
    "NgramProposer",
    "PlanError",
    "ReplayAllocationError",
    "WorkerError",
    "plan_cache",
    "step_bytes",
]
