"""Recent requests simulated as they came, and with other settings."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from kvarn.config.schema import KvarnConfig
from kvarn.costs.replica_model import ReplicaModel
from kvarn.costs.step_times import StepTimes
from kvarn.planner.errors import PlanError
from kvarn.sandbox.worker import TOLD
from kvarn.simulator import what_if
from kvarn.simulator.other_replica import other_replica
from kvarn.simulator.what_if import answer, recorded_traffic, simulate_both
from kvarn.wire.what_if import (
    Changes,
    NotSimulated,
    Progress,
    RecordedRequest,
    Side,
    Simulated,
    WhatIf,
)

TIMES = StepTimes(fixed_s=0.01, prefill_token_s=4e-5, decode_row_s=1e-4, decode_token_s=1e-7)
REPLICA = ReplicaModel(step_times=TIMES, kv_blocks=600, block_bytes=0, max_context_length=4096)
CHECKPOINT = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def requests(count: int = 60, every_s: float = 0.05) -> list[RecordedRequest]:
    return [
        RecordedRequest(
            at_s=round(number * every_s, 3),
            input_tokens=300 + 7 * number % 200,
            cached_tokens=64 if number % 2 else 0,
            output_tokens=20 + number % 30,
            project=number % 3,
            ttft_s=0.2,
            total_s=1.2,
        )
        for number in range(count)
    ]


def asked(changes: Changes | None = None, **fields: Any) -> WhatIf:
    config = KvarnConfig.model_validate({"models": [{"name": "m", "path": "m", "replicas": 1}]}).model_dump(mode="json")
    given: dict[str, Any] = {
        "config": {"models": config["models"], "slo": config["slo"], "admission": config["admission"]},
        "checkpoint": CHECKPOINT,
        "kv_cache_dtype": "bfloat16",
        "quantization": "",
        "read_bytes_per_s": 0.0,
        "replica": REPLICA,
        "requests": requests(),
        "duration_s": 4.0,
        "changes": changes or Changes(),
    }
    return WhatIf(**given | fields)


def p95(side: Side, name: str = "ttft_s") -> float:
    found = getattr(side, name)
    assert found is not None
    return float(found.at(0.95))


def test_without_a_change_both_runs_are_the_same_and_every_request_has_an_end() -> None:
    told: list[float] = []
    found = simulate_both(asked(), told.append)
    assert found.logs[0] == found.logs[1] and found.before == found.after and found.settings == []
    assert found.before.requests == 60 == found.before.answered + found.before.refused + found.before.failed
    assert told == sorted(told) and all(0 <= share <= 1 for share in told)
    assert found.before.cached_share is not None and found.before.cached_share > 0, "shared beginnings are found again"


def test_the_measured_side_is_the_ledgers() -> None:
    measured = simulate_both(asked()).measured
    assert measured.answered == 60 and p95(measured) == pytest.approx(0.2)
    assert measured.tpot_s is not None and measured.tpot_s.at(0.0) == pytest.approx(1.0 / 48)
    assert simulate_both(asked(requests=[replace(each, ttft_s=None) for each in requests()])).measured.ttft_s is None


def test_what_a_request_spends_outside_the_engine_is_what_the_medians_differ_by() -> None:
    slow = [replace(each, ttft_s=5.0, total_s=6.0) for each in requests()]
    found = simulate_both(asked(requests=slow))
    assert found.before.ttft_s is not None and found.before.ttft_s.at(0.5) == pytest.approx(5.0, abs=0.01)
    assert any("pass outside the engine" in note for note in found.notes)


def test_one_replica_more_shortens_the_wait_and_the_same_question_has_the_same_answer() -> None:
    question = asked(Changes(replicas=2))
    found = simulate_both(question)
    assert found.settings == ["models.0.replicas=2"]
    assert p95(found.after) < p95(found.before)
    assert simulate_both(question) == found


def test_whole_prompts_hold_up_those_who_decode() -> None:
    long = [replace(each, input_tokens=3000, cached_tokens=0) for each in requests(12, 0.2)]
    question = asked(Changes(whole_prompts=True), requests=long, replica=replace(REPLICA, kv_blocks=6000))
    config = question.config | {"models": [question.config["models"][0] | {"engine": {"token_budget": 64}}]}
    found = simulate_both(replace(question, config=config))
    assert found.after.tpot_s is not None and found.before.tpot_s is not None
    assert found.after.tpot_s.at(1.0) > 0 and found.logs[0] != found.logs[1]
    assert p95(found.after) < p95(found.before), "a budget of 64 tokens makes prompts slow"


def test_a_cache_of_half_the_bytes_holds_twice_as_many_blocks() -> None:
    other = other_replica(asked(Changes(kv_cache_dtype="fp8")))
    assert other.replica.kv_blocks == 2 * REPLICA.kv_blocks
    assert other.replica.step_times.decode_token_s == pytest.approx(TIMES.decode_token_s / 2)
    assert any("read as fast as now" in note for note in other.notes)


def test_smaller_weights_are_read_sooner_and_leave_their_memory_to_the_cache() -> None:
    other = other_replica(asked(Changes(quantization="int8")))
    assert 0.4 < other.replica.step_times.fixed_s / TIMES.fixed_s < 0.8, "the embedding stays as it is"
    assert other.replica.kv_blocks > REPLICA.kv_blocks
    measured = other_replica(asked(Changes(quantization="int8"), read_bytes_per_s=1e12))
    assert TIMES.fixed_s > measured.replica.step_times.fixed_s > 0.99 * TIMES.fixed_s, "they were read in no time"


def test_bytes_are_not_guessed_without_a_config() -> None:
    with pytest.raises(PlanError, match=r"no config\.json"):
        other_replica(asked(Changes(kv_cache_dtype="int8"), checkpoint=None))
    assert other_replica(asked(Changes(replicas=3), checkpoint=None)).replica == REPLICA


def test_traffic_is_what_was_recorded() -> None:
    recorded = requests()
    made = list(recorded_traffic(recorded[::-1]))
    assert [each.begins_s for each in made] == [each.at_s for each in recorded]
    assert [each.turns[0].prompt_tokens for each in made] == [each.input_tokens for each in recorded]
    assert [each.turns[0].output_tokens for each in made] == [each.output_tokens for each in recorded]
    assert len({each.tenant for each in made}) == 3


def test_the_process_tells_progress_and_answers(monkeypatch: pytest.MonkeyPatch, capfdbinary: Any) -> None:
    monkeypatch.setattr(what_if.os, "nice", lambda by: by)
    reply = msgspec.json.decode(answer(msgspec.json.encode(asked())), type=Simulated | NotSimulated)
    assert isinstance(reply, Simulated)
    told = capfdbinary.readouterr().out
    assert int.from_bytes(told[:8], "big") & TOLD
    size = int.from_bytes(told[:8], "big") ^ TOLD
    assert 0 <= msgspec.json.decode(told[8 : 8 + size], type=Progress).share <= 1
    refused = answer(msgspec.json.encode(asked(Changes(kv_cache_dtype="fp8"), checkpoint=None)))
    assert isinstance(msgspec.json.decode(refused, type=Simulated | NotSimulated), NotSimulated)
    assert not math.isnan(reply.before.within_targets or 0.0)
