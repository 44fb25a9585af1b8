"""How long a device waits for the engine: with one step in flight, and with the next one planned while it runs.

    python -m benchmarks.device_idle --rows 256 --step-ms 5

The engine is the real one; the device is a model that takes the same time for each step and knows no other work. Time
is the processor time of the engine's thread plus what it spends waiting for the device, so that other programs on the
machine do not count. Idle is the share of the time, from the first step to the end, in which the device has no plan.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import deque

from kvarn.config.schema import EngineConfig
from kvarn.engine import EngineCore, EngineParts
from kvarn.engine.plan import RowResult, StepPlan, StepResult
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams

CONTEXT = 8192


class ModelledDevice:
    """An executor that takes `step_s` for each plan, one after the other, and draws the same token for ever."""

    max_context_length = CONTEXT

    def __init__(self, num_blocks: int, step_s: float, max_in_flight: int) -> None:
        self.num_blocks = num_blocks
        self.max_in_flight = max_in_flight
        self.began_s = self.ended_s = 0.0
        self.busy_s = 0.0
        self._step_s = step_s
        self._waited_s = 0.0
        self._running: deque[tuple[StepPlan, float]] = deque()

    def now(self) -> float:
        """Seconds the engine has worked or waited."""
        return time.thread_time() + self._waited_s

    def submit(self, plan: StepPlan) -> None:
        """The device starts on it at once, or after the plan before it."""
        start = max(self.now(), self.ended_s)
        if not self.busy_s:
            self.began_s = start
        self.busy_s += self._step_s
        self.ended_s = start + self._step_s
        self._running.append((plan, self.ended_s))

    def collect(self) -> StepResult:
        """Wait until the device has ended the oldest plan."""
        plan, ended_s = self._running.popleft()
        self._waited_s += max(0.0, ended_s - self.now())
        rows = [RowResult(row.slot, [7] if row.sample else []) for row in plan.rows]
        return StepResult(plan.step, rows, self._step_s)

    def shutdown(self) -> None:
        """Nothing to free."""

    @property
    def idle(self) -> float:
        """Share of the time in which the device had nothing to do."""
        return 1 - self.busy_s / (self.ended_s - self.began_s)


def measure(rows: int, steps: int, step_s: float, max_in_flight: int) -> float:
    """The device's idle share while `rows` sequences decode for `steps` steps."""
    device = ModelledDevice((rows + 8) * 64, step_s, max_in_flight)
    engine = EngineCore(
        EngineParts(device, EngineConfig(max_num_seqs=rows, token_budget=8192, tpot_target_ms=1e9)), device.now
    )
    for number in range(rows):
        prompt = [(number * 7 + place) % 1000 for place in range(24)]
        sampling = SamplingParams(seed=number, max_tokens=steps)
        engine.add(Submit(request_id=f"r{number}", prompt_token_ids=prompt, sampling=sampling, tenant=f"t{number % 8}"))
    while engine.has_work():
        engine.step()
    return device.idle


def main() -> None:
    """Print both shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256, help="sequences that decode")
    parser.add_argument("--steps", type=int, default=200, help="tokens of each")
    parser.add_argument("--step-ms", type=float, default=5.0, help="what the device takes for a step")
    arguments = parser.parse_args()
    gc.freeze()  # as the engine process does
    for max_in_flight in (1, 2):
        idle = measure(arguments.rows, arguments.steps, arguments.step_ms / 1000, max_in_flight)
        print(f"{max_in_flight} in flight: the device is idle {idle:.2%} of the time")


if __name__ == "__main__":
    main()
