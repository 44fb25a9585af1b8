"""Bytes of each rank of a divided model, and plans, are those of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from held_bytes import held_bytes
from kvarn.config.model import ModelConfig
from kvarn.costs.device_memory import DRIVER_BYTES, GIB, DeviceMemory
from kvarn.models import Decoder, load_model
from kvarn.models.parallel import Parallel
from kvarn.planner.memory import ReplicaSetting, plan_memory
from kvarn.planner.models import find_model
from kvarn.replica.server.startup import memory as startup
from kvarn.shapes import BLOCK_SIZE
from kvarn.specs.place import Place, Stage
from kvarn.specs.weight_bytes import weight_bytes
from meeting import Meeting, ThreadCollectives
from profiles import thorough
from tiny_checkpoints import make_decoder

pytest.importorskip("kvarn.kernels.cpu._native", reason="Kvarn was installed without its compiled kernels")

DIVIDED: list[tuple[str, int, dict[str, Any]]] = [
    ("llama", 4, {}),  # two ranks hold the same key/value head
    ("qwen3", 2, {"stage": Stage(0, 2)}),
    ("qwen3", 2, {"stage": Stage(1, 2)}),
    ("command-r-plus", 2, {}),
    ("gpt-oss", 2, {"expert_parallel": True}),
    ("mixtral", 4, {"expert_parallel": True}),
    ("qwen2-moe", 2, {"expert_parallel": True, "expert_load": {0: [9, 1, 1, 1, 1, 1]}, "redundant_experts": 2}),
    ("deepseek-v3", 4, {}),
    ("qwen3-next", 2, {}),
    ("qwen3-next", 1, {"fixed_sums": True}),
]


@pytest.mark.parametrize("quantization", [None, thorough("int4")])
@pytest.mark.parametrize(("family", "degree", "how"), DIVIDED)
def test_each_rank_takes_the_bytes_that_were_planned(
    family: str, degree: int, how: dict[str, Any], quantization: Any, tmp_path: Path
) -> None:
    make_decoder(family, tmp_path)
    model, meeting = find_model(str(tmp_path)), Meeting(degree)
    for rank in range(degree):
        parallel = Parallel(rank, degree, ThreadCollectives(meeting, rank), **how)
        loaded = load_model(tmp_path, parallel=parallel, quantization=quantization, kernels="cpu", dtype="bfloat16")
        assert isinstance(loaded, Decoder)
        planned = weight_bytes(model.spec, Place(rank, degree, **how), model.forms("cpu", "bfloat16", quantization))
        assert sum(planned.values()) == held_bytes(loaded), rank
        if "stage" not in how:
            cache, of_all = loaded.new_kv_cache(5), model.spec.kv_bytes_per_token(loaded.kv_dtype)
            held = sum(tensor.nbytes for tensor in (*cache.keys, *cache.values))
            assert held * degree == 5 * BLOCK_SIZE * of_all * model.spec.cache_copies(degree)


SETTINGS: list[dict[str, Any]] = [{}, {"kv_cache_gib": 0.01}, {"max_context_length": 64, "engine": {"max_num_seqs": 9}}]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("family", ["llama", "deepseek-v3", "qwen3-next"])
def test_processors_get_the_blocks_that_were_planned(
    family: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_decoder(family, tmp_path)
    machine = GIB
    monkeypatch.setattr(startup, "usable_memory", lambda: machine)
    config = ModelConfig.model_validate({"name": "m", "path": str(tmp_path), **settings})
    loaded = load_model(tmp_path, kernels="cpu", max_context_length=config.max_context_length)
    assert isinstance(loaded, Decoder)
    setting = ReplicaSetting(
        kernels="cpu",
        max_num_seqs=settings.get("engine", {}).get("max_num_seqs"),
        max_context_length=config.max_context_length,
        kv_cache_gib=config.kv_cache_gib,
    )
    assert plan_memory(find_model(str(tmp_path)), setting, machine).cache == startup.plan_memory(loaded, config, [])


def test_a_gpu_gets_the_blocks_that_were_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of 8 GiB, as a driver reports it once the weights are loaded."""
    make_decoder("gpt-oss", tmp_path)
    config = ModelConfig.model_validate({"name": "m", "path": str(tmp_path)})
    loaded = load_model(tmp_path, kernels="triton", dtype="bfloat16")
    assert isinstance(loaded, Decoder)
    total, own = 8 * GIB, held_bytes(loaded) + DRIVER_BYTES
    memory = DeviceMemory.of(total, total - own, held_bytes(loaded))
    monkeypatch.setattr(type(loaded.kernels.device), "memory", lambda _: memory)
    planned = plan_memory(find_model(str(tmp_path)), ReplicaSetting(), total)
    assert planned.cache == startup.plan_memory(loaded, config, [])
    assert sum(part.quantity.value for part in planned.parts) == int(0.9 * total)
