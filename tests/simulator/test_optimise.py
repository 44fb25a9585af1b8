"""The search for the cheapest deployment, against trying everything."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kvarn.costs.replica_model import ReplicaModel
from kvarn.costs.step_times import StepTimes
from kvarn.planner import plan as make_plan
from kvarn.planner.answer import Candidate, Layout, Money, Plan, Pool
from kvarn.planner.devices import device_table
from kvarn.planner.errors import PlanError
from kvarn.planner.models import find_model
from kvarn.planner.quantity import Quantity
from kvarn.planner.request import PlanRequest
from kvarn.simulator.optimise import _Optimiser, optimise
from kvarn.simulator.optimised import Tried
from kvarn.simulator.planned_traffic import planned_traffic
from kvarn.simulator.variants import variants_of

TIMES = StepTimes(fixed_s=0.1, prefill_token_s=1e-3, decode_row_s=5e-3)
REPLICA = ReplicaModel(step_times=TIMES, kv_blocks=2000, block_bytes=1, max_context_length=2048, error=0.1)
ZERO = Quantity(value=0.0)


def candidate(
    replicas: int, dollars: float, *, name: str = "x", is_served: bool = True, budget: int = 512
) -> Candidate:
    fields: dict[str, Any] = dict.fromkeys(Candidate.__struct_fields__, ZERO)
    money: dict[str, Any] = dict.fromkeys(Money.__struct_fields__, ZERO)
    pool = Pool(role="serve", replicas=replicas, devices=replicas, capacity_rps=ZERO, utilisation=ZERO, batch=ZERO)
    engine = {"max_num_seqs": 64, "token_budget": budget, "tpot_target_ms": 600.0}
    return Candidate(
        **fields
        | {
            "name": name,
            "layout": Layout(device="h100"),
            "is_served": is_served,
            "pools": (pool,),
            "devices": replicas,
            "money": Money(**money | {"total": Quantity(value=dollars * replicas)}),
            "memory": (),
            "decode_step": (),
            "prefill": (),
            "max_context_length": 2048,
            "reasons": (),
            "settings": {"name": "m", "path": "m", "ttft_target_s": 4.0, "tpot_target_s": 0.6, "engine": engine},
            "replica": REPLICA,
        }
    )


def plan(*candidates: Candidate, rate: float = 3.0, ttft: float = 4.0, cached: float = 0.0) -> Plan:
    request = PlanRequest(
        model="m",
        traffic={"rate_rps": rate, "input_tokens": 400, "output_tokens": 6, "cached_share": cached},
        slo={"ttft_s": ttft, "tpot_s": 0.6},
    )
    raw = request.model_dump(mode="json")
    return Plan(model="m", model_facts=(), request=raw, candidates=candidates, rejected=())


def planned_model() -> Plan:
    """A 70B model on H100s: its plan has 8 replicas of 4 devices, and capacity to spare."""
    request = PlanRequest(
        model="Llama-3.1-70B",
        devices=("h100",),
        traffic={"rate_rps": 30.0, "input_tokens": 2000, "output_tokens": 8, "length_variation": 0.5},
        slo={"ttft_s": 0.5, "tpot_s": 0.2},
        choices={
            "headroom": 0.3,
            "weights": ("plain",),
            "kv_dtypes": ("bfloat16",),
            "tensor_parallel": (4,),
            "pipeline_parallel": (1,),
            "disaggregation": False,
        },
    )
    return make_plan(request, device_table(), find_model(request.model))


def test_its_best_for_a_planned_model_costs_at_most_a_twentieth_more_than_that_of_trying_everything() -> None:
    asked = planned_model()
    planned = variants_of(asked)[0]
    everything = _Optimiser(asked, 0, 3.0, None, lambda runs: None)
    grid = [
        replace(planned, replicas=replicas, token_budget=budget, max_num_seqs=sequences)
        for replicas in range(planned.replicas - 2, planned.replicas + 1)
        for budget in (planned.token_budget // 2, planned.token_budget)
        for sequences in (planned.max_num_seqs // 2, planned.max_num_seqs)
    ]
    tried = everything._try(grid, 1.0)
    least = min(dollars_per_million(each) for each in tried if each.figures.excess <= 0)
    assert any(each.figures.excess > 0 for each in tried), "the grid has deployments that are too small"
    told: list[int] = []
    found = optimise(asked, duration_s=3.0, progress=told.append)
    assert found.best is not None and found.best.figures.excess <= 0
    assert dollars_per_million(found.best) <= 1.05 * least < dollars_per_million(found.planned)
    assert found.length < len(grid) and told == list(range(1, found.runs + 1))
    assert found.changes and all(each.reason and each.before != each.after for each in found.changes)
    assert found.settings["replicas"] == found.best.variant.replicas
    assert optimise(asked, duration_s=3.0) == found, "the same question has the same answer"


def dollars_per_million(tried: Tried) -> float:
    """Cost of a million tokens of the planned model's traffic."""
    tokens_per_hour = 3600 * 30.0 * (2000 + 8) * tried.figures.answered
    return tried.figures.dollars_per_hour / tokens_per_hour * 1e6


def test_where_the_plan_holds_only_what_costs_less_is_run() -> None:
    found = optimise(plan(candidate(1, 2.0), rate=0.3), duration_s=5.0)
    assert found.runs == 1 and found.candidates == 0 < found.variants and found.best == found.planned


def test_the_search_goes_on_where_its_processes_die(caplog: pytest.LogCaptureFixture) -> None:
    class Dying:
        def map(self, *_: object) -> Iterator[object]:
            raise BrokenProcessPool
            yield

    asked = plan(candidate(3, 2.0))
    found = _Optimiser(asked, 0, 1.0, cast(ProcessPoolExecutor, Dying()), lambda runs: None).optimise()
    assert found == optimise(asked, duration_s=1.0) and found.runs > 1
    assert "in one process" in caplog.text


def test_where_nothing_meets_the_targets_the_nearest_is_told() -> None:
    found = optimise(plan(candidate(1, 2.0), ttft=0.001), duration_s=5.0)
    assert found.best is None and found.closest is not None and found.changes == ()
    assert found.closest.figures.excess > 0


def test_only_what_this_version_serves_is_varied() -> None:
    with pytest.raises(PlanError, match="not served by this version"):
        variants_of(plan(candidate(1, 2.0, is_served=False)))
    found = variants_of(plan(candidate(9, 1.0, is_served=False), candidate(2, 2.0)))
    assert found[0].candidate == 1 and found[0].replicas == 2, "the planned one comes first"
    assert {each.replicas for each in found} == {2, 3}
    assert len(set(found)) == len(found)


def test_the_traffic_has_the_plans_rate_and_lengths() -> None:
    request = PlanRequest.model_validate(plan(candidate(1, 1.0), rate=50.0, cached=0.5).request)
    made = list(planned_traffic(request.traffic, 100.0, seed=1))
    prompts = [each.turns[0].prompt_tokens for each in made]
    shared = [each.turns[0].segments[0].length for each in made if len(each.turns[0].segments) == 2]
    assert len(made) == pytest.approx(5000, rel=0.1)
    assert sum(prompts) / len(prompts) == pytest.approx(400, rel=0.1)
    assert sum(shared) / sum(prompts) == pytest.approx(0.5, abs=0.01)
