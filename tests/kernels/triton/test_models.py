"""Whole models by the Triton kernels: the tokens of the reference, with batches filled up as for captured steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch

from kvarn.config.engine import EngineConfig
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.kernels.batch import whole_texts
from kvarn.kernels.weights import Quantization
from kvarn.models import Decoder, load_model
from kvarn.models.adapters import load_adapter
from kvarn.replica.server.experts import ExpertLoads
from kvarn.wire.messages import EngineStats, Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.async_executor import AsyncExecutor
from kvarn.worker.executor import InProcessExecutor
from profiles import sample, thorough
from tiny_adapters import make_adapter
from tiny_checkpoints import make_decoder


def load(path: Path, kernels: str, quantization: Quantization | None = None) -> Decoder:
    model = load_model(path, dtype="float32", kernels=kernels, quantization=quantization)
    assert isinstance(model, Decoder)
    return model


def make_engine(executor: InProcessExecutor) -> EngineCore:
    ticks = count()
    return EngineCore(
        EngineParts(executor, EngineConfig(max_num_seqs=4, tpot_target_ms=1e9)), lambda: next(ticks) * 0.01
    )


def drain(engine: EngineCore, found: dict[str, list[int]]) -> dict[str, list[int]]:
    while engine.has_work():
        for delta in engine.step().deltas:
            found.setdefault(delta.request_id, []).extend(delta.token_ids)
    return found


def tokens(executor: InProcessExecutor) -> dict[str, list[int]]:
    """Three requests, of which one ends early."""
    engine = make_engine(executor)
    for index, temperature in enumerate((0.0, 0.9, 0.0)):
        sampling = SamplingParams(seed=index, temperature=temperature, max_tokens=(4, 4, 2)[index])
        engine.add(Submit(request_id=str(index), prompt_token_ids=[7, 8 + index, 9][: 1 + index], sampling=sampling))
    return drain(engine, {})


@pytest.mark.parametrize(
    ("family", "quantization"),
    [
        sample("qwen3", None),
        thorough("qwen3", "fp8"),
        ("gpt-oss", None),
        thorough("qwen2-moe", None),
        ("deepseek-v3", None),
    ],
)
def test_a_model_answers_as_with_the_reference(tmp_path: Path, family: str, quantization: Quantization | None) -> None:
    make_decoder(family, tmp_path, **({"num_hidden_layers": 2} if family != "qwen3" else {}))
    found, visits = [], []
    for kernels, fill_up in (("torch", False), ("triton", True)):
        model = load(tmp_path, kernels, quantization)
        assert model.can_be_captured is (kernels == "triton")
        found.append(tokens(AsyncExecutor(model, num_blocks=20, max_num_seqs=4, fill_up=fill_up)))
        # Rows that fill a batch up visit no expert.
        visits.append({layer: experts.tokens.tolist() for layer, experts in model.expert_layers.items()})
    assert found[0] == found[1] and visits[0] == visits[1]
    assert [len(found[1][each]) for each in "012"] == [4, 4, 2]
    assert bool(visits[0]) is (family != "qwen3")
    if visits[1]:
        loads, before = ExpertLoads(model, None), EngineStats()
        counted = sum(map(sum, visits[1].values()))
        assert loads.enter(before).experts.tokens_total == {"0": counted}
        tokens(AsyncExecutor(model, num_blocks=20, max_num_seqs=4, fill_up=True))
        # What is reported was fetched by the call before.
        assert [loads.enter(before).experts.tokens_total["0"] for _ in range(2)] == [counted, 2 * counted]


def test_a_mixture_whose_sums_are_taken_as_by_several_ranks_asks_the_host(tmp_path: Path) -> None:
    from kvarn.models.parallel import Parallel

    make_decoder("mixtral", tmp_path, num_hidden_layers=1)
    model = load_model(tmp_path, dtype="float32", kernels="triton", parallel=Parallel(fixed_sums=True))
    assert isinstance(model, Decoder) and not model.can_be_captured


def test_adapters_change_a_model_as_with_the_reference(tmp_path: Path) -> None:
    oracle = make_decoder("qwen3", tmp_path / "model", num_hidden_layers=1)
    make_adapter(oracle, tmp_path / "0")
    make_adapter(oracle, tmp_path / "1", seed=1, r=17)
    texts, _ = whole_texts(torch.tensor([6, 3, 5]))
    ids = torch.randint(4, 190, (14,), generator=torch.Generator().manual_seed(1))
    found = []
    for kernels in ("torch", "triton"):
        model = load(tmp_path / "model", kernels)
        cache = model.new_kv_cache(60)
        memory, first = model.new_adapter_memory(cache), 10
        for index in range(2):
            packed = load_adapter(tmp_path / str(index), model).packed
            blocks = range(first, first + memory.num_blocks(packed))
            first = blocks.stop
            memory.write(packed, blocks)
            memory.place(index, packed, blocks)
        batch = replace(texts, adapters=memory.batch(torch.tensor([0] * 6 + [-1] * 3 + [1] * 5)))
        found.append(model.forward(ids, batch, cache, torch.tensor([5, 8, 13])))
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-4)
