"""Parts of a model that ranks hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvarn.costs.cache_plan import GpuBudget, plan_cache
from kvarn.costs.device_memory import GIB, DeviceMemory
from kvarn.planner.models import preset
from kvarn.shapes import BLOCK_SIZE
from kvarn.specs.place import Stage, StageError, even_ranks


@pytest.mark.parametrize(("name", "stages"), [("Llama-2-7b", 1), ("Llama-2-7b", 5), ("Qwen3-Next-80B-A3B", 5)])
def test_the_fullest_stage_keeps_its_cache_within_its_gpus_memory(name: str, stages: int) -> None:
    """Of 32 layers one of five stages has seven: its GPU would be over its share by 9 % if each had a fifth."""
    spec = replace(preset(name).spec, max_context_length=1024)
    memory = DeviceMemory(total=100 * GIB, free=90 * GIB, own=10 * GIB)
    budget = GpuBudget(memory, 0.9, even_ranks(spec, "bfloat16", stages, stages), GIB)
    sizes = {"kv_cache_gib": None, "memory_bytes": 0, "max_num_seqs": 100_000, "max_context_length": 1024}
    plan = plan_cache(spec, "bfloat16", gpu=budget, may_lower_seqs=True, **sizes)
    for stage in (Stage(index, stages).layers(spec.num_layers) for index in range(stages)):
        held = replace(spec, layers=spec.layers[stage.start : stage.stop])
        states = (plan.max_num_seqs + plan.num_snapshots) * held.state_bytes
        taken = plan.num_blocks * BLOCK_SIZE * held.kv_bytes_per_token("bfloat16") + states
        assert taken <= memory.usable(0.9) - GIB
    with pytest.raises(StageError, match="lower pipeline_parallel_size"):
        even_ranks(spec, "bfloat16", 100, 100)
