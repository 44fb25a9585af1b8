"""The modelled executor under the real scheduler: time on a virtual clock, tokens, masks, proposals, failures."""

from __future__ import annotations

import random
from collections import deque
from itertools import pairwise

import pytest

from engine_world import ScriptedProposer
from kvarn.clock.virtual import VirtualClock
from kvarn.config.engine import EngineConfig
from kvarn.config.speculation import SpeculationConfig
from kvarn.costs.step_times import StepTimes
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.wire.messages import Submit, TokenDelta
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.modelled import ModelledExecutor, successor

TIMES = StepTimes(fixed_s=0.008, prefill_token_s=4e-5, decode_row_s=1e-4, decode_token_s=1e-7)


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
    clock = VirtualClock()
    executor = ModelledExecutor(TIMES.seconds, clock, num_blocks=2000, max_in_flight=max_in_flight)
    engine = EngineCore(EngineParts(executor, EngineConfig(max_num_seqs=64, tpot_target_ms=50.0)), clock.now)
    waiting, first, last = deque(coming), {}, {}
    while waiting or engine.has_work():
        if not engine.has_work():
            clock.move_to(waiting[0][0])
        while waiting and waiting[0][0] <= clock.now():
            engine.add(waiting.popleft()[1])
        for delta in engine.step().deltas:
            first.setdefault(delta.request_id, clock.now())
            if delta.finish_reason is not None:
                last[delta.request_id] = clock.now()
    engine.check_integrity()
    return first, last, clock.now()


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


def answer(max_in_flight: int = 1, **sampling: object) -> list[TokenDelta]:
    executor = ModelledExecutor(max_in_flight=max_in_flight)
    engine = EngineCore(EngineParts(executor, EngineConfig()), VirtualClock().now)
    sampling_params = SamplingParams(**{"seed": 1, "max_tokens": 6} | sampling)
    engine.add(Submit(request_id="r", prompt_token_ids=[400, 500], sampling=sampling_params))
    deltas: list[TokenDelta] = []
    while engine.has_work():
        deltas += engine.step().deltas
    return deltas


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_each_token_follows_the_one_before_it_also_where_steps_are_planned_ahead(max_in_flight: int) -> None:
    tokens = [500, *(token for delta in answer(max_in_flight) for token in delta.token_ids)]
    assert len(tokens) == 7
    assert all(successor(before) == after for before, after in pairwise(tokens))


def test_log_probabilities_come_with_the_tokens_when_requested() -> None:
    assert [len(delta.logprobs or []) for delta in answer(logprobs=3) if delta.token_ids] == [1] * 6
    assert not any(delta.logprobs for delta in answer())


class EvenMask:
    """Allows even tokens."""

    ready, problem = True, None

    def forced(self, index: int, output_token_ids: list[int]) -> list[int]:
        return []

    def pack(self, index: int, output_token_ids: list[int], proposals: list[int]) -> list[bytes]:
        return [b"\x55" * 512] * (len(proposals) + 1)


def test_masked_rows_draw_the_next_allowed_token_and_wrong_proposals_are_rejected() -> None:
    proposer = ScriptedProposer([(3, 9)])  # guesses of another model: the executor's tokens differ
    engine = EngineCore(
        EngineParts(
            ModelledExecutor(),
            EngineConfig(),
            masks=lambda message: EvenMask(),
            proposer=proposer,
            speculation=SpeculationConfig(adaptive=False),
        ),
        VirtualClock().now,
    )
    engine.add(Submit(request_id="r", prompt_token_ids=[500], sampling=SamplingParams(seed=1, max_tokens=4)))
    tokens: list[int] = []
    while engine.has_work():
        tokens += [token for delta in engine.step().deltas for token in delta.token_ids]
    assert tokens == [502, 504, 506, 508]


def test_a_token_function_that_raises_fails_the_step() -> None:
    def next_token(token: int, sequence: object) -> int:
        raise RuntimeError("the device is on fire")

    engine = EngineCore(EngineParts(ModelledExecutor(next_token=next_token), EngineConfig()), VirtualClock().now)
    engine.add(Submit(request_id="r", prompt_token_ids=[1], sampling=SamplingParams(seed=1, max_tokens=4)))
    with pytest.raises(RuntimeError, match="on fire"):
        engine.step()
