"""The real engine as a new version that is worse: factories of a `ReplicaSpec`."""

from __future__ import annotations

import time
from typing import Any

import torch

from kvarn.replica.server.build import build_service
from kvarn.replica.spec import ReplicaSpec, ReportProgress

_STEP_S = 0.03
"""A step takes this long at least where speed is compared: what the gateway takes is the same for both."""


def build(spec: ReplicaSpec, report: ReportProgress) -> Any:
    """The engine as it is."""
    return build_service(spec, report)


def build_paced(spec: ReplicaSpec, report: ReportProgress) -> Any:
    """The engine with steps of a model that is not tiny."""
    return _paced(build_service(spec, report), 1.0)


def build_slow(spec: ReplicaSpec, report: ReportProgress) -> Any:
    """The same; each step takes 20 % longer."""
    return _paced(build_service(spec, report), 1.2)


def build_noisy(spec: ReplicaSpec, report: ReportProgress) -> Any:
    """Logits with normal noise of 1 % of their size."""
    service = build(spec, report)
    executor: Any = service.parts.executor
    compute = executor.runner.model.logits

    def noisy(hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = compute(hidden)
        return logits * (1 + 0.01 * torch.randn_like(logits))

    executor.runner.model.logits = noisy
    return service


def _paced(service: Any, times: float) -> Any:
    executor = service.parts.executor
    execute = executor.execute

    def paced(plan: Any) -> Any:
        began = time.perf_counter()
        result = execute(plan)
        took = time.perf_counter() - began
        time.sleep(max(0.0, times * max(took, _STEP_S) - took))
        return result

    executor.execute = paced
    return service
