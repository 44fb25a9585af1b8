"""Turns plans into tokens: the executor, the sampler, KV-cache sizing."""

from kvarn.worker.draft import DraftProposer
from kvarn.worker.eagle import EagleProposer
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
from kvarn.worker.ngram import NgramProposer
from kvarn.worker.pipelined import PipelinedExecutor

__all__ = [
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
    "PipelinedExecutor",
    "PlanError",
    "ReplayAllocationError",
    "WorkerError",
    "plan_cache",
    "step_bytes",
]
