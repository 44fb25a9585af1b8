"""The planner's queues beside the simulator: the same replicas and traffic, in closed form and request by request.

    python -m benchmarks.planner_queues --duration 300      # the table of docs/internals/planner_accuracy.md

Both take the same times of steps, so what differs is what `kvarn plan` says of queues, batches and the router.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

from kvarn.config.model import ModelConfig
from kvarn.config.schema import KvarnConfig
from kvarn.planner import plan
from kvarn.planner.answer import Candidate
from kvarn.planner.devices import device_table
from kvarn.planner.planning import planned_model
from kvarn.planner.profile import preset_profile
from kvarn.planner.request import Choices, PlanRequest, SloRequest
from kvarn.planner.sizing import size
from kvarn.simulator import simulate
from kvarn.simulator.scenario import Scenario, TrafficConfig

CASES = (
    ("Llama-3.1-8B", "azure-conv", 1, (0.3, 0.6, 0.9)),
    ("Llama-3.1-8B", "azure-conv", 4, (0.6, 0.9)),
    ("Llama-3.1-8B", "azure-code", 1, (0.6,)),
    ("Llama-3.1-8B", "sharegpt", 2, (0.6, 0.9)),
    ("Qwen/Qwen3-30B-A3B", "azure-conv", 2, (0.6, 0.9)),
)
"""Model, traffic, replicas, and parts of the capacity that the plan gives them."""
SLO = SloRequest(ttft_s=0.5, tpot_s=0.05)


def request_of(model: str, traffic: str, rate: float) -> PlanRequest:
    """The question of a case: one H100 a replica."""
    return PlanRequest(
        model=model,
        traffic=preset_profile(traffic, rate),
        slo=SLO,
        choices=Choices(
            weights=("plain",), kv_dtypes=("bfloat16",), tensor_parallel=(1,), disaggregation=False, headroom=0
        ),
    )


def simulated(candidate: Candidate, replicas: int, traffic: str, rate: float, duration_s: float) -> tuple[float, float]:
    """TTFT and TPOT at p95 of the requests after a fifth of the run, in seconds."""
    model = ModelConfig.model_validate(candidate.settings | {"replicas": replicas})
    scenario = Scenario(
        config=KvarnConfig(models=(model,)),
        replicas={model.name: candidate.replica},
        traffic=(TrafficConfig(preset=traffic, rate=rate),),
        duration_s=duration_s,
    )
    table = simulate(scenario).requests
    late = table.column("arrival_s") > duration_s / 5
    ttft, tpot = table.column("ttft_s")[late], table.column("tpot_s")[late]
    return float(np.nanpercentile(ttft, 95)), float(np.nanpercentile(tpot[table.column("output_tokens")[late] > 1], 95))


def rows(duration_s: float, only: int) -> Iterator[tuple[Any, ...]]:
    """Planned and simulated latencies of each case."""
    for model, traffic, replicas, shares in CASES[:only]:
        request = request_of(model, traffic, 1.0)
        device = device_table().devices["h100"]
        candidate = plan(request).candidates[0]
        sized = size(request, planned_model(request), device, candidate.layout)
        capacity = sized.capacity(replicas)
        for share in shares:
            rate = share * capacity.capacity(replicas)
            point = capacity.at(rate, replicas)
            ttft_s, tpot_s = simulated(candidate, replicas, traffic, rate, duration_s)
            yield model, traffic, replicas, share, rate, point.ttft_s, ttft_s, point.tpot_s, tpot_s


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--duration", type=float, default=300.0, help="seconds of simulated traffic")
    parser.add_argument("--cases", type=int, default=len(CASES), help="cases, from the first on")
    options = parser.parse_args()
    print("| model | traffic | replicas | of its capacity | requests/s | TTFT p95, ms: plan, simulator | error "
          "| TPOT p95, ms: plan, simulator | error |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for model, traffic, replicas, share, rate, ttft, its_ttft, tpot, its_tpot in rows(options.duration, options.cases):
        print(
            f"| {model} | {traffic} | {replicas} | {share:.0%} | {rate:.1f} | {1000 * ttft:.0f}, {1000 * its_ttft:.0f} "
            f"| {ttft / its_ttft - 1:+.0%} | {1000 * tpot:.1f}, {1000 * its_tpot:.1f} | {tpot / its_tpot - 1:+.0%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
