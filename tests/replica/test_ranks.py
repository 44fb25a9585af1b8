"""A model in several processes gives the tokens and log-probabilities of one: at every degree, whatever runs beside."""

from __future__ import annotations

import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("kvarn.kernels.cpu._native", reason="torch's own products do not promise the order of their sums")

import kvarn
from kvarn.config.model import ModelConfig
from kvarn.replica.server.experts import ExpertLoadError
from kvarn.specs.place import ParallelError, StageError
from kvarn.worker.ranks.collectives import RankLostError
from profiles import effort, thorough
from rank_services import Answers, build, requests, run
from tiny_checkpoints import make_decoder

DEMO = Path(kvarn.__file__).parent / "assets" / "kvarn-demo"
ADAPTERS = DEMO.parent / "adapters"
NUM_PROMPTS = effort(80, 200)
CROWDED = {"kv_cache_gib": 0.0003, "engine": {"token_budget": 48, "max_num_seqs": 12, "tpot_target_ms": 1e9}}
"""Prompts are cut into chunks, and sequences lose their blocks to each other, however long steps take."""
DEGREES = [(2, 1), (1, 2), *(thorough(*degree) for degree in ((4, 1), (2, 2), (4, 2), (8, 1)))]


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small mixture of experts."""
    path = tmp_path_factory.mktemp("experts")
    make_decoder("qwen3-moe", path)
    return path


@cache
def demo_alone(*, invariant: bool) -> Answers:
    """What one process gives."""
    service = build(DEMO, tensor_parallel_invariant=invariant)
    answers = run(service, requests(range(200, 4000), NUM_PROMPTS, with_grammars=True))
    service.shutdown()
    return answers


@pytest.mark.parametrize(("tensor", "stages"), DEGREES)
def test_answers_are_those_of_one_process_with_the_same_sums(tensor: int, stages: int) -> None:
    expected = demo_alone(invariant=tensor > 1)
    crowded = CROWDED if tensor < 8 else {**CROWDED, "kv_cache_gib": 0.0005}  # eight ranks hold each head twice
    service = build(DEMO, tensor_parallel_size=tensor, pipeline_parallel_size=stages, **crowded)
    answers = run(service, requests(range(200, 4000), NUM_PROMPTS, with_grammars=True))
    stats = service.stats()
    service.shutdown()
    assert answers.keys() == expected.keys()
    for key, answer in answers.items():
        assert answer == expected[key], key
    assert stats.preemptions_total > 0 or stages > 1  # steps of two stages overlap as time has it
    assert stats.cached_tokens_total > 0


@pytest.mark.thorough
def test_the_sums_of_several_processes_are_others_than_those_of_one_product() -> None:
    """What the test above compares with is not what one process does by default."""
    assert demo_alone(invariant=True) != demo_alone(invariant=False)


def test_adapters_are_divided_among_ranks() -> None:
    """Little memory: they lose their blocks to sequences and to each other."""
    adapters = [{"name": name, "path": str(ADAPTERS / name)} for name in ("pirate", "json")]
    messages = [
        msgspec.structs.replace(message, adapter=("", "pirate", "json")[index // 3 % 3])
        for index, message in enumerate(requests(range(200, 4000), effort(30, 60), with_grammars=True))
    ]
    alone = build(DEMO, tensor_parallel_invariant=True, adapters=adapters)
    expected = run(alone, messages)
    plain = run(alone, [msgspec.structs.replace(message, adapter="") for message in messages])
    assert sum(plain[key] != expected[key] for key in expected) > len(expected) / 3
    alone.shutdown()
    for degree in (2, 4)[: effort(1, 2)]:
        crowded = {"kv_cache_gib": 0.0008 + 0.00015 * degree, "engine": CROWDED["engine"]}
        service = build(DEMO, tensor_parallel_size=degree, adapters=adapters, **crowded)
        answers = run(service, messages)
        assert answers.keys() == expected.keys()
        for key, answer in answers.items():
            assert answer == expected[key], (degree, key)
        assert service.stats().adapters.evictions_total > 0
        service.shutdown()


@pytest.mark.parametrize(
    "settings",
    [
        thorough({"tensor_parallel_size": 2}),
        {"tensor_parallel_size": 2, "expert_parallel": True},
        thorough({"tensor_parallel_size": 4, "expert_parallel": True}),
        thorough({"tensor_parallel_size": 2, "expert_parallel": True, "pipeline_parallel_size": 3}),
    ],
    ids=str,
)
def test_expert_parallel_ranks_give_the_same_answers(experts: Path, settings: dict[str, Any]) -> None:
    messages = requests(range(3, 199), 40, with_grammars=False)
    alone = build(experts, tensor_parallel_invariant=True)
    expected = run(alone, messages)
    alone.shutdown()
    service = build(experts, **settings)
    assert run(service, messages) == expected
    service.shutdown()


@pytest.mark.parametrize("family", [thorough("deepseek-v3"), "qwen3-next"])
def test_latent_and_recurrent_layers_are_divided_among_ranks_and_stages(family: str, tmp_path: Path) -> None:
    """Latent attention; and recurrent states, which are all that the first of the two stages has."""
    make_decoder(family, tmp_path)
    messages = requests(range(3, 199), 30, with_grammars=False)
    alone = build(tmp_path, tensor_parallel_invariant=True)
    expected = run(alone, messages)
    alone.shutdown()
    service = build(tmp_path, tensor_parallel_size=2, expert_parallel=True, pipeline_parallel_size=2)
    assert run(service, messages) == expected
    service.shutdown()


@pytest.mark.thorough
def test_hot_experts_are_held_by_several_after_the_next_start(experts: Path, tmp_path: Path) -> None:
    messages = requests(range(3, 199), 40, with_grammars=False)
    settings = {
        "tensor_parallel_size": 2,
        "expert_parallel": True,
        "experts": {"load_file": str(tmp_path / "load" / "experts.json"), "num_redundant": 2},
    }
    answers, busiest = [], []
    for _ in range(2):
        service = build(experts, **settings)
        answers.append(run(service, messages))
        stats = service.stats()
        assert set(stats.experts.tokens_total) == {"0", "1"}
        assert stats.experts.imbalance > 1
        busiest.append(max(stats.experts.tokens_total.values()))
        service.shutdown()
    assert answers[0] == answers[1]
    assert busiest[1] < busiest[0]
    (tmp_path / "load" / "experts.json").write_text("[]")
    with pytest.raises(ExpertLoadError, match="Delete it"):
        build(experts, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        thorough({"tensor_parallel_size": 8}, "4 query heads cannot be divided evenly among 8 ranks"),
        thorough({"pipeline_parallel_size": 4}, "3 layers cannot be divided into 4 stages"),
    ],
    ids=str,
)
def test_sizes_that_do_not_divide_the_model_are_refused(experts: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ParallelError, StageError), match=message):
        build(experts, **settings)


def test_a_rank_that_ends_while_it_loads_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    false = shutil.which("false")
    assert false is not None
    monkeypatch.setattr(sys, "executable", false)
    with pytest.raises(RankLostError, match="rank 1 of the model ended while it loaded"):
        build(DEMO, tensor_parallel_size=2)


def test_settings_that_ranks_do_not_support_are_refused() -> None:
    for settings, message in (
        ({"tensor_parallel_size": 3}, "must be 1, 2, 4 or 8"),
        ({"pipeline_parallel_size": 2, "speculation": {"method": "eagle3", "model": "x"}}, "an EAGLE-3 head"),
        ({"pipeline_parallel_size": 2, "adapters": [{"name": "a", "path": "b"}]}, "several stages"),
        ({"prefill_context_parallel_size": 2, "speculation": {"method": "eagle3", "model": "x"}}, "an EAGLE-3 head"),
    ):
        with pytest.raises(ValueError, match=message):
            ModelConfig.model_validate({"name": "m", "path": "kvarn-demo", **settings})
