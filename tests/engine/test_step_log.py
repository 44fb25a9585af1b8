"""Times of steps in the log, what is forgotten, what is told of a turn. Who was in each step is checked against random
traffic, in `test_engine_properties.py`."""

from __future__ import annotations

import pytest

from kvarn.clock.virtual import VirtualClock
from kvarn.config.engine import EngineConfig
from kvarn.costs.step_times import StepShape
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.engine.live import live_steps, turn_steps
from kvarn.engine.step_log import StepLog
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.wire.step_records import MAX_ROWS, MAX_STEPS, LiveSteps, TurnSteps
from kvarn.worker.modelled import ModelledExecutor


def floor_of(shape: StepShape) -> float:
    return 0.001 * shape.decode_rows


class Rig:
    """An engine whose steps take 10 ms and 1 ms more a row, on a clock of its own."""

    def __init__(self, max_in_flight: int = 1, **config: object) -> None:
        self.clock = VirtualClock(100.0)
        executor = ModelledExecutor(self._seconds, self.clock, max_in_flight=max_in_flight, num_blocks=8192)
        self.core = EngineCore(EngineParts(executor, EngineConfig(**config)), self.clock.now)
        self.answers = 0

    def _seconds(self, shape: StepShape) -> float:
        return 0.01 + 0.001 * shape.decode_rows + 0.0001 * shape.prefill_tokens

    def add(self, request_id: str, prompt: int = 1, tokens: int = 8, **fields: object) -> None:
        sampling = SamplingParams(seed=0, max_tokens=tokens)
        prompt_ids = [300 + i for i in range(prompt)]
        self.core.add(Submit(request_id=request_id, prompt_token_ids=prompt_ids, sampling=sampling, **fields))

    def run(self, steps: int = 10**6, host_s: float = 0.0) -> None:
        """Steps until nothing is left; between two the host takes so long."""
        while steps and self.core.has_work():
            self.core.step()
            self.clock.sleep(host_s)
            steps -= 1

    def steps_of(self, request_id: str) -> TurnSteps:
        told = turn_steps(self.core.step_log, self.core.scheduler, request_id, self.clock.now(), floor_of)
        assert told is not None
        return told

    def live(self, after_step: int = 0) -> LiveSteps:
        core = self.core
        return live_steps(core.scheduler, core.step_log, core.preparing, after_step, self.clock.now(), floor_of)


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_the_steps_of_a_busy_time_fill_it_without_a_gap(max_in_flight: int):
    rig = Rig(max_in_flight)
    rig.add("a", tokens=20)
    rig.add("b", tokens=5)
    began = rig.clock.now()
    rig.run(host_s=0.003)
    told = rig.steps_of("a")
    assert told.complete
    assert told.steps[0].at_us == 0
    ends = [step.at_us + step.us for step in told.steps]
    assert ends[:-1] == [step.at_us for step in told.steps[1:]]
    assert ends[-1] == round((rig.clock.now() - 0.003 - began) * 1e6)
    assert sum(row.output_tokens for step in told.steps for row in step.rows if row.turn == 0) == 20


def test_a_step_ends_with_its_result_where_nothing_follows():
    rig = Rig()
    for name in ("a", "b"):
        rig.add(name, tokens=1)
        rig.run()
        rig.clock.sleep(60.0)
    first, second = rig.live().steps
    assert (first.us, second.at_us - first.at_us) == (11_000, 60_011_000)


def test_an_aborted_request_does_not_lengthen_the_latest_step():
    rig = Rig()
    rig.add("a", tokens=50)
    rig.run(steps=3)
    rig.core.abort("a")
    rig.clock.sleep(60.0)
    rig.add("b", tokens=1)
    rig.run()
    assert [step.us for step in rig.live().steps] == [11_000] * 4


def test_the_step_that_ran_when_a_turn_was_accepted_is_its_first():
    rig = Rig(max_in_flight=2)
    rig.add("a", tokens=9)
    rig.run(steps=1)
    rig.clock.sleep(0.004)
    rig.add("b", prompt=40, tokens=3, tenant="acme", priority=2)
    rig.run()
    told = rig.steps_of("b")
    assert told.steps[0].at_us == -4_000
    own = [(row.computed_tokens, row.output_tokens) for step in told.steps for row in step.rows if row.turn == 0]
    assert own == [(40, 1), (1, 1), (1, 1)]
    assert [turn.request_id for turn in told.turns] == ["b", "a"]
    turn = told.turns[0]
    assert (turn.tenant, turn.priority, turn.prompt_tokens, turn.cached_tokens) == ("acme", 2, 40, 0)
    assert told.kv_blocks == 8192


def test_the_floor_and_the_shape_of_a_step_are_told():
    rig = Rig(token_budget=16)
    rig.add("a", tokens=4)
    rig.run(steps=2)
    rig.add("b", prompt=10, tokens=1)
    rig.run(steps=1)
    step = rig.live().steps[-1]
    assert (step.prefill_tokens, step.prefill_pairs, step.decode_rows, step.decode_context) == (10, 55, 1, 3)
    assert (step.floor_us, step.free_blocks) == (1_000, 8190)


def test_live_steps_are_those_after_the_last_one_told_and_what_waits_is_grouped():
    rig = Rig(max_num_seqs=2)
    for i in range(6):
        rig.add(f"r{i}", prompt=20, tokens=30, tenant="acme" if i % 2 else "globex", priority=i // 4)
    rig.run(steps=5)
    before = rig.live()
    rig.run(steps=2)
    live = rig.live(after_step=before.steps[-1].number)
    assert [step.number for step in live.steps] == [6, 7]
    assert {live.turns[each.turn].request_id: each.output_tokens for each in live.running} == {"r0": 7, "r1": 7}
    groups = {(each.tenant, each.priority, each.reason): (each.sequences, each.tokens) for each in live.queue}
    assert groups == {
        ("globex", 0, "slot"): (1, 20),
        ("acme", 0, "slot"): (1, 20),
        ("globex", 1, "slot"): (1, 20),
        ("acme", 1, "slot"): (1, 20),
    }
    assert live.free_blocks == 8192 - 2 * 2
    assert [step.number for step in rig.live(after_step=1000).steps] == [1, 2, 3, 4, 5, 6, 7], "another engine's number"


def test_a_long_turn_is_told_with_both_its_ends_and_its_slowest_steps():
    rig = Rig(max_num_seqs=2)
    rig.add("a", tokens=3500)
    rig.run(steps=1500)
    rig.add("b", prompt=900, tokens=2)
    rig.run()
    told = rig.steps_of("a")
    numbers = [step.number for step in told.steps]
    assert not told.complete
    assert len(numbers) == MAX_STEPS
    assert numbers == sorted(numbers)
    assert numbers[:500] == list(range(1, 501))
    assert numbers[-500:] == list(range(3001, 3501))
    assert max(step.us for step in told.steps) == max(step.us for step in rig.steps_of("b").steps)


def test_of_too_many_rows_other_turns_keep_their_long_ones():
    rig = Rig(max_num_seqs=128, min_prefill_chunk=100)
    for i in range(100):
        rig.add(f"r{i}", tokens=300)
    rig.run(steps=100)
    rig.add("late", prompt=700, tokens=3)
    rig.run()
    told = rig.steps_of("r0")
    rows = [(told.turns[row.turn].request_id, row.computed_tokens) for step in told.steps for row in step.rows]
    assert not told.complete
    assert len(rows) < MAX_ROWS
    assert sum(1 for name, _ in rows if name == "r0") == 300
    late = next(turn for turn in told.turns if turn.request_id == "late")
    assert sum(tokens for name, tokens in rows if name == "late") == 700 - late.cached_tokens
    assert sum(step.decode_rows for step in told.steps) == 100 * 300 + 2


def test_memory_is_bounded_and_what_is_forgotten_is_said():
    rig = Rig()
    rig.core.step_log = StepLog(max_bytes=2**20)
    rig.add("first", tokens=40)
    for i in range(5_000):
        rig.add(f"r{i}", tokens=2)
        rig.run(steps=2)
        assert len(rig.core.step_log.since(0, 10**6)) < 4_000
    log = rig.core.step_log
    assert log.find("r0") is None
    assert turn_steps(log, rig.core.scheduler, "r0", rig.clock.now(), floor_of) is None
    assert rig.steps_of("r4999").complete
    assert len(log._turns) == len(log._by_id) < 3_000


def test_what_is_older_than_an_hour_is_forgotten():
    rig = Rig()
    rig.add("old")
    rig.add("later", tokens=2100)
    rig.run()
    rig.clock.sleep(3601.0)
    rig.add("new", tokens=1200)
    rig.run()
    assert rig.core.step_log.find("old") is None
    assert rig.steps_of("new").complete
    assert rig.live().steps[-1].number == 3300


def test_a_turn_that_outlives_the_beginning_of_the_log_is_not_complete():
    rig = Rig()
    rig.core.step_log = StepLog(keep_s=20.0)
    rig.add("long", tokens=3900)
    rig.run()
    told = rig.steps_of("long")
    assert not told.complete
    assert told.steps[0].number > 1


def test_of_two_turns_with_one_id_the_latest_is_told():
    rig = Rig()
    for tokens in (3, 5):
        rig.add("same", tokens=tokens)
        rig.run()
    assert len(rig.steps_of("same").steps) == 5


def test_turns_that_were_forgotten_while_their_step_was_in_flight_are_left_out():
    rig = Rig(max_in_flight=2)
    rig.core.step_log = StepLog(max_bytes=2**20)
    for name in ("stays", "gone"):
        rig.add(name, tokens=20)
    rig.run(steps=3)
    assert rig.core.scheduler.num_in_flight
    rig.core.abort("gone")
    for i in range(3_000):  # their entries push out those that ended first
        rig.add(f"r{i}")
        rig.core.abort(f"r{i}")
    assert rig.core.step_log.find("gone") is None
    rig.run()
    named = [{live.turns[row.turn].request_id for row in step.rows} for live in [rig.live()] for step in live.steps]
    assert named == [{"stays"}] * len(named) and rig.steps_of("stays").steps
