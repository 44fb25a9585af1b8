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
    WorkerError,
)
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.memory import plan_cache
from kvarn.worker.ngram import NgramProposer
from kvarn.worker.pipelined import PipelinedExecutor

__all__ = [
    "CacheTooLargeError",
    "CacheTooSmallError",
    "DraftProposer",
    "EagleProposer",
    "EncoderRunner",
    "InProcessExecutor",
    "InvalidLogitsError",
    "InvalidSamplingError",
    "NgramProposer",
    "PipelinedExecutor",
    "PlanError",
    "WorkerError",
    "plan_cache",
]
