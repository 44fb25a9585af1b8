"""Turns plans into tokens: the executor, the sampler, KV-cache sizing."""

from kvarn.worker.encoder_runner import EncoderRunner
from kvarn.worker.errors import (
    CacheTooLargeError,
    CacheTooSmallError,
    InvalidLogitsError,
    InvalidSamplingError,
    PlanError,
    WorkerError,
)
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.memory import plan_kv_blocks

__all__ = [
    "CacheTooLargeError",
    "CacheTooSmallError",
    "EncoderRunner",
    "InProcessExecutor",
    "InvalidLogitsError",
    "InvalidSamplingError",
    "PlanError",
    "WorkerError",
    "plan_kv_blocks",
]
