"""The simulator's speed: an hour of Azure-like traffic on ten thousand devices, and the cost of an event as it grows.

    python -m benchmarks.simulated_fleet                      25 deployments of 50 replicas of 8 devices, one hour
    python -m benchmarks.simulated_fleet --deployments 1      a 25th of it: deployments share nothing
    python -m benchmarks.simulated_fleet --growth             the cost of a request from 1 to 50 replicas

Each deployment serves Llama-3.1-70B on H100s of the device table. Seconds are those of the processor: what others do on
the machine does not count.
"""

from __future__ import annotations

import argparse
import time
from resource import RUSAGE_SELF, getrusage

from kvarn.simulator import Outcome, Scenario, simulate
from kvarn.simulator.outcome import summary
from kvarn.simulator.scenario import TrafficConfig

GROWTH = (1, 5, 10, 25, 50)


def fleet(deployments: int, replicas: int, rps: float, duration_s: float) -> Scenario:
    """So many deployments, each with its own traffic of `rps` requests a second."""
    names = [f"llama-{number}" for number in range(deployments)]
    model = {"path": "meta-llama/Llama-3.1-70B", "tensor_parallel_size": 8, "replicas": replicas}
    return Scenario.model_validate(
        {
            "name": f"{deployments * replicas * 8:,} devices",
            "config": {"models": [{"name": name, **model} for name in names]},
            "devices": {name: {"device": "h100"} for name in names},
            "traffic": [TrafficConfig(model=name, preset="azure-conv", rate=rps) for name in names],
            "duration_s": duration_s,
        }
    )


def timed(scenario: Scenario, jobs: int = 1) -> tuple[Outcome, float]:
    """The outcome, and the seconds of the processor (of this process alone)."""
    began = time.process_time()
    outcome = simulate(scenario, jobs=jobs)
    return outcome, time.process_time() - began


def show(scenario: Scenario, outcome: Outcome, seconds: float) -> None:
    requests, events = len(outcome.requests), outcome.num_events
    each = summary(outcome)
    assert each.ttft_s is not None, "requests were answered"
    uses = outcome.deployments
    busy = sum(use.busy_s for use in uses) / sum(use.device_s for use in uses)
    print(
        f"{scenario.name}, {scenario.duration_s:,.0f} s: {requests:,} requests, {events:,} events in {seconds:.1f} s "
        f"({outcome.wall_s:.1f} s on the clock); {seconds / requests * 1e6:.0f} µs a request, "
        f"{seconds / events * 1e6:.0f} µs an event; devices compute {busy:.0%} of the time, "
        f"{each.output_tokens_per_s:,.0f} output tokens/s, "
        f"TTFT p95 {each.ttft_s['p95'] * 1e3:.0f} ms, log {outcome.log_sha256[:16]}; "
        f"{getrusage(RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deployments", type=int, default=25)
    parser.add_argument("--replicas", type=int, default=50, help="of each deployment")
    parser.add_argument("--rps", type=float, default=5.0, help="requests a second of each deployment")
    parser.add_argument("--duration", type=float, default=3600.0, help="seconds")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--growth", action="store_true", help="only the cost of a request by the number of replicas")
    arguments = parser.parse_args()
    if arguments.growth:
        for replicas in GROWTH:
            rps = arguments.rps * replicas / arguments.replicas
            scenario = fleet(1, replicas, rps, arguments.duration * 5 / replicas)
            show(scenario, *timed(scenario))
        return
    scenario = fleet(arguments.deployments, arguments.replicas, arguments.rps, arguments.duration)
    show(scenario, *timed(scenario, arguments.jobs))


if __name__ == "__main__":
    main()
