"""The configuration that serves a candidate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvarn.planner.candidates import Group

MOST_REPLICAS = 256
"""Replicas of an entry of `models`."""


def settings_of(groups: Sequence[Group]) -> dict[str, Any]:
    """An entry of `models`, without what has its default. `path` is left to the reader."""
    replica = groups[-1].replica
    layout, slo, config = replica.layout, replica.request.slo, replica.config
    found: dict[str, Any] = {
        "name": replica.memory.model.name,
        "path": replica.memory.model.name,
        "device": "cpu" if replica.device.kind == "cpu" else "cuda",
        "ttft_target_s": slo.ttft_s,
        "tpot_target_s": slo.tpot_s,
        "max_context_length": replica.memory.cache.max_context_length,
        "engine": {
            "max_num_seqs": config.max_num_seqs,
            "token_budget": config.token_budget,
            "tpot_target_ms": round(config.tpot_target_ms, 3),
        },
    }
    if layout.weights != "plain":
        found["quantization"] = layout.weights
    if layout.kv_dtype != "bfloat16":
        found["kv_cache_dtype"] = layout.kv_dtype
    if layout.tensor_parallel > 1:
        found["tensor_parallel_size"] = layout.tensor_parallel
    if layout.pipeline_parallel > 1:
        found["pipeline_parallel_size"] = layout.pipeline_parallel
    if layout.expert_parallel:
        found["expert_parallel"] = True
    if layout.host_gib or len(groups) > 1:
        found["kv_tiers"] = {"host_gib": layout.host_gib or 1.0}
    if len(groups) > 1:
        found["disaggregation"] = {"mode": "auto"}
    elif groups[0].count > 1:
        found["replicas"] = min(groups[0].count, MOST_REPLICAS)
    return found
