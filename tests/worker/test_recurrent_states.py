"""A model with recurrent states through the engine: what its states change, and what they must not.

That its answers have the same bits in a batch, in chunks, after a prefix hit and after preemption is tested for every
family in `test_batch_invariance.py`.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from kvarn.config.model import ModelConfig
from kvarn.costs.cache_plan import CacheTooSmallError, plan_cache
from kvarn.engine.plan import BlockUpdate, Row, StateSave, StepPlan
from kvarn.models import Decoder, DecoderSpec, UnsupportedModelError, load_model
from kvarn.replica.server.build import build_service
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.server.startup.memory import check_recurrent
from kvarn.replica.spec import ReplicaSpec
from kvarn.shapes import BLOCK_SIZE
from kvarn.shapes.attention import DeltaDimensions
from kvarn.wire.messages import StepOutput, Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.errors import PlanError
from kvarn.worker.executor import InProcessExecutor
from tiny_checkpoints import make_decoder

GIB = 1024**3


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("qwen3-next")
    make_decoder("qwen3-next", directory)
    return directory


@pytest.fixture(scope="module")
def model(path: Path) -> Decoder:
    loaded = load_model(path, dtype="float32")
    assert isinstance(loaded, Decoder)
    return loaded


def request(name: str, length: int, **sampling: Any) -> Submit:
    prompt = torch.randint(3, 199, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    params = SamplingParams(**{"seed": length, "temperature": 1.0, "max_tokens": 20, **sampling})
    return Submit(request_id=name, prompt_token_ids=prompt, sampling=params)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_choices_are_those_of_requests_of_their_own(stack: Any, model: Decoder, prefix_cache: bool) -> None:
    together = stack(model, prefix_cache=prefix_cache).generate([request("r", 37, n=3), request("other", 20)])
    alone = stack(model).generate([request("r", 37, n=3)])
    assert [together["r", i].token_ids for i in range(3)] == [alone["r", i].token_ids for i in range(3)]
    assert len({tuple(alone["r", i].token_ids) for i in range(3)}) == 3
    first = stack(model).generate([request("r", 37)])
    assert first["r", 0].token_ids == alone["r", 0].token_ids


def test_steps_planned_ahead_change_no_token(stack: Any, model: Decoder) -> None:
    requests = [request(f"r{length}", length, stop_token_ids=[5]) for length in (3, 16, 34, 49)]
    want = stack(model).tokens(requests)
    ahead = stack(model, plans_ahead=True, token_budget=24, num_snapshots=8)
    for _ in range(2):
        assert ahead.tokens(requests) == want
    assert ahead.engine.stats().cached_tokens_total > 0


def test_an_unknown_snapshot_in_a_plan_is_an_error(model: Decoder, admission: Any) -> None:
    executor = InProcessExecutor(model, num_blocks=4, max_num_seqs=2, num_snapshots=1)
    new = admission(0, prompt=[5, 6])
    for snapshot in (1, 7):
        row = Row(0, 0, [5, 6], [BlockUpdate(0, 0)], sample=True, state_saves=[StateSave(2, snapshot)])
        with pytest.raises(PlanError, match=f"snapshot {snapshot} of states is not one of 1"):
            executor.execute(StepPlan(1, [], [new], [], [row]))
        executor.execute(StepPlan(2, [0], [], [], []))


def test_one_budget_holds_blocks_states_and_snapshots(model: Decoder) -> None:
    spec = model.spec
    cache = model.new_kv_cache(3, 5)
    assert cache.recurrent_states is not None
    held = sum(tensor.nbytes for tensor in (*cache.recurrent_states.matrices, *cache.recurrent_states.inputs))
    assert held == 5 * spec.state_bytes
    blocks = sum(tensor.nbytes for tensor in (*cache.keys, *cache.values))
    assert blocks == 3 * BLOCK_SIZE * spec.kv_bytes_per_token("float32")
    large = _large(spec)
    one, block = large.state_bytes, BLOCK_SIZE * large.kv_bytes_per_token("bfloat16")
    sizes: dict[str, Any] = {"max_context_length": 1024, "memory_bytes": 64 * GIB}
    plan = plan_cache(large, "bfloat16", kv_cache_gib=8, max_num_seqs=32, **sizes)
    used = (32 + plan.num_snapshots) * one + plan.num_blocks * block
    assert 8 * GIB - block < used <= 8 * GIB
    assert plan.num_snapshots > 0


def _large(spec: DecoderSpec) -> DecoderSpec:
    """States of 75 MiB, as those of the 80B model."""
    delta = DeltaDimensions(key_heads=16, value_heads=32, key_dim=128, value_dim=128, window=4)
    attends = next(layer for layer in spec.layers if not layer.attention.state_bytes)
    return dataclasses.replace(spec, layers=[attends] * 12 + [dataclasses.replace(attends, attention=delta)] * 36)


@pytest.mark.parametrize(
    "settings",
    [
        {"kv_tiers": {"host_gib": 0.05}},
        {"speculation": {"method": "ngram"}},
        {"disaggregation": {}},
        {"prefill_context_parallel_size": 2},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_recurrent_states_do_not_support_are_refused(model, path, settings):
    with pytest.raises(UnsupportedModelError, match=f"`{next(iter(settings))}`.*Leave it out"):
        check_recurrent(model, _replica(path, **settings).model_config)


def test_default_max_num_seqs_is_lowered_to_the_memory_for_states(path, model, caplog):
    caplog.set_level("INFO")
    gib = 60 * model.spec.state_bytes / GIB
    service = build_service(_replica(path, kv_cache_gib=gib, max_context_length=64), lambda *_: None)
    assert isinstance(service, GenerateService)
    assert service.card.max_num_seqs < 30
    assert f"engine.max_num_seqs is {service.card.max_num_seqs} in place of 256" in caplog.text
    assert re.search(rf"states of {service.card.max_num_seqs} sequences and [1-9]\d* snapshots", caplog.text)
    requests = [request(f"r{length}", length) for length in range(3, 40)]
    assert [service.accept(each) for each in requests] == [None] * len(requests)
    finished = set[str]()
    while service.has_work():
        for message in service.step():
            assert isinstance(message, StepOutput)
            finished |= {delta.request_id for delta in message.deltas if delta.finish_reason}
    assert finished == {each.request_id for each in requests}
    with pytest.raises(CacheTooSmallError, match="states of 256 sequences"):
        build_service(_replica(path, kv_cache_gib=gib, engine={"max_num_seqs": 256}), lambda *_: None)


def _replica(path: Path, **settings: Any) -> ReplicaSpec:
    own = {"name": "m", "path": str(path), "threads": 1, "kv_cache_gib": 0.05}
    config = ModelConfig.model_validate({**own, **settings})
    return ReplicaSpec(model=config.model_dump_json(exclude_unset=True), directory=str(path))
