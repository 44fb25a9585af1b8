"""States of a replica joined from what its engine tells, and their differences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvarn.gateway.console.live.state import BlockOwners, StepHistory, changed_runs
from kvarn.wire.kv_map import NO_OWNER, OTHER_OWNERS, KVMap
from kvarn.wire.step_records import LiveSteps, RunningTurn, StepRecord, StepRow, StepTurn


def told(numbers: list[int], names: list[str], now_us: int = 0) -> LiveSteps:
    """Steps that all of these turns are in."""
    turns = [StepTurn(name, "t", "", 0, 1, 0, 0) for name in names]
    rows = [StepRow(i, 1, 1) for i in range(len(names))]
    steps = [StepRecord(number, 100 * number, 100, 0, 0, 0, 1, 1, 0, 9, rows) for number in numbers]
    running = [RunningTurn(i, 1, 1, 1, 1, 1) for i in range(len(names))]
    return LiveSteps(
        now_us=now_us,
        turns=turns,
        steps=steps,
        running=running,
        queue=[],
        times=None,
        kv_blocks=1,
        free_blocks=1,
        cached_blocks=0,
    )


def shown(history: StepHistory) -> list[tuple[int, list[str]]]:
    return [(step.number, [history.turns[row.turn].request_id for row in step.rows]) for step in history.steps]


def test_turns_keep_their_numbers_and_the_latest_step_is_replaced():
    history = StepHistory()
    history.take(told([1, 2], ["a", "b"]), 50.0)
    assert history.asked_after == 1
    running = history.take(told([2, 3], ["c", "b"], now_us=1000), 50.001)
    assert shown(history) == [(1, ["a", "b"]), (2, ["c", "b"]), (3, ["c", "b"])]
    assert [each.turn for each in running] == [2, 1]
    assert [step.at_us for step in history.steps] == [50_000_100, 50_000_200, 50_000_300]


def test_a_clock_that_was_set_moves_the_steps_after_it():
    history = StepHistory()
    history.take(told([1], ["a"]), 50.0)
    history.take(told([1, 2], ["a"]), 90.0)
    assert [step.at_us for step in history.steps] == [90_000_100, 90_000_200]


def test_an_engine_that_begins_anew_begins_another_epoch():
    history = StepHistory()
    for live in (told([7, 8], ["a"]), told([1], ["b"]), told([], [])):
        history.take(live, 0.0)
    assert (history.epoch, shown(history), history.asked_after) == (2, [], 0)


def test_turns_that_nothing_speaks_of_are_forgotten():
    history = StepHistory()
    for number in range(1, 6_000):
        history.take(told([number], [f"r{number}"]), 0.0)
    assert len(history.steps) == 200
    assert len(history.turns) <= 2_001
    assert shown(history)[-1] == (5_999, ["r5999"])


cells = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=40)


@given(before=cells, now=cells)
def test_the_changed_runs_make_one_map_of_another(before: list[tuple[int, int]], now: list[tuple[int, int]]):
    maps = [
        KVMap(states=bytes(s for s, _ in each), owners=bytes(o for _, o in each), tenants=["a", "b", "c"], tiers=[])
        for each in (before, now)
    ]
    states, owners = bytearray(maps[0].states), bytearray(maps[0].owners)
    if len(before) != len(now):
        states, owners = bytearray(len(now)), bytearray(len(now))
    ends = 0
    for first, end in changed_runs(*maps, chunk=4):
        assert first >= ends
        states[first:end], owners[first:end] = maps[1].states[first:end], maps[1].owners[first:end]
        ends = end
    assert (bytes(states), bytes(owners)) == (maps[1].states, maps[1].owners)
    assert before != now or not ends


def test_tenants_keep_their_places_and_too_many_share_one():
    owners = BlockOwners()
    many = [f"t{i}" for i in range(250)]
    first = KVMap(states=bytes(251), owners=bytes([*range(250), NO_OWNER]), tenants=many, tiers=[])
    assert owners.renumber(first) == first
    second = KVMap(states=bytes(7), owners=bytes(range(7)), tenants=["t9", *(f"u{i}" for i in range(6))], tiers=[])
    assert list(owners.renumber(second).owners) == [9, 250, 251, 252, 253, OTHER_OWNERS, OTHER_OWNERS]
