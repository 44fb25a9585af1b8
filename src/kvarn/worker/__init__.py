"""Turns plans into tokens: `ModelRunner`, the sampler, KV-cache sizing, executors."""

from kvarn.worker.encoder_runner import EncoderRunner
from kvarn.worker.errors import (
    CacheTooLargeError,
    CacheTooSmallError,
    ExecutorClosedError,
    InvalidLogitsError,
    InvalidSamplingError,
    PlanError,
    WorkerError,
)
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.memory import plan_kv_blocks
from kvarn.worker.runner import ModelRunner

__all__ = [
    "CacheTooLargeError",
    "CacheTooSmallError",
    "EncoderRunner",
    "ExecutorClosedError",
    "InProcessExecutor",
    "InvalidLogitsError",
    "InvalidSamplingError",
    "ModelRunner",
    "PlanError",
    "WorkerError",
    "plan_kv_blocks",
]
