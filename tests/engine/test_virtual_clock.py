"""The engine on a virtual clock: an hour of traffic on a modelled device, the same each time."""

from __future__ import annotations

import random
from collections import deque

import pytest

from kvarn.config.schema import EngineConfig
from kvarn.engine import EngineCore, EngineParts
from kvarn.engine.plan import RowResult, StepPlan, StepResult
from kvarn.engine.step_time import StepShape
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams


class VirtualDevice:
    """Runs plans one after the other in modelled time; `now` moves on when the engine waits for a result."""

    max_context_length = 4096

    def __init__(self, num_blocks: int, max_in_flight: int) -> None:
        self.num_blocks = num_blocks
        self.max_in_flight = max_in_flight
        self.now = 0.0
        self._free_at = 0.0
        self._running: deque[tuple[StepPlan, float, float]] = deque()

    def submit(self, plan: StepPlan) -> None:
        seconds = step_s(plan)
        self._free_at = max(self.now, self._free_at) + seconds
        self._running.append((plan, seconds, self._free_at))

    def collect(self) -> StepResult:
        plan, seconds, ended = self._running.popleft()
        self.now = max(self.now, ended)
        rows = [RowResult(row.slot, [7] if row.sample else []) for row in plan.rows]
        return StepResult(plan.step, rows, seconds)

    def shutdown(self) -> None:
        pass


def step_s(plan: StepPlan) -> float:
    shape = StepShape()
    for row in plan.rows:
        shape.add(row.start, len(row.token_ids))
    return 0.008 + 4e-5 * shape.prefill_tokens + 1e-4 * shape.decode_rows + 1e-7 * shape.decode_context


def arrivals(count: int, rate: float) -> list[tuple[float, Submit]]:
    """Requests of four tenants at random times."""
    chance, at, coming = random.Random(11), 0.0, []
    for number in range(count):
        at += chance.expovariate(rate)
        prompt = [chance.randrange(1000) for _ in range(chance.choice([40, 200, 600]))]
        sampling = SamplingParams(seed=number, max_tokens=chance.choice([5, 20, 60]))
        tenant, priority = f"t{number % 4}", 10 * (number % 5 == 0)
        message = Submit(
            request_id=f"r{number}", prompt_token_ids=prompt, sampling=sampling, tenant=tenant, priority=priority
        )
        coming.append((at, message))
    return coming


def play(coming: list[tuple[float, Submit]], max_in_flight: int) -> tuple[dict[str, float], dict[str, float], float]:
    """When each request had its first token and its last, and when the device had nothing left to do."""
    device = VirtualDevice(2000, max_in_flight)
    engine = EngineCore(EngineParts(device, EngineConfig(max_num_seqs=64, tpot_target_ms=50.0)), lambda: device.now)
    waiting, first, last = deque(coming), {}, {}
    while waiting or engine.has_work():
        if not engine.has_work():
            device.now = max(device.now, waiting[0][0])
        while waiting and waiting[0][0] <= device.now:
            engine.add(waiting.popleft()[1])
        for delta in engine.step().deltas:
            first.setdefault(delta.request_id, device.now)
            if delta.finish_reason is not None:
                last[delta.request_id] = device.now
    engine.check_integrity()
    return first, last, device.now


@pytest.mark.thorough
def test_thousands_of_requests_are_played_in_virtual_time_and_twice_the_same() -> None:
    coming = arrivals(2000, rate=20.0)
    first, last, ended = play(coming, max_in_flight=1)
    assert len(first) == len(last) == 2000
    assert coming[-1][0] < ended < coming[-1][0] + 30, "the device keeps up with the traffic"
    delays = sorted(first[message.request_id] - at for at, message in coming)
    assert 0 < delays[1000] < 0.5
    assert (first, last, ended) == play(coming, max_in_flight=1)


def test_planning_ahead_delays_a_first_token_by_a_step_and_serves_as_many() -> None:
    coming = arrivals(400, rate=20.0)
    synchronous, ahead = play(coming, max_in_flight=1), play(coming, max_in_flight=2)
    assert set(ahead[1]) == set(synchronous[1])
    assert ahead[2] < synchronous[2] + 1.0
