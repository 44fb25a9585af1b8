"""A record's events, and those that an engine tells of a turn."""

from __future__ import annotations

import pytest

from kvarn.observe.timeline import FIELDS, EngineEventKind, Phase, Timeline, engine_events, spent_by_phase


def test_each_kind_of_event_says_what_its_numbers_mean():
    assert len(FIELDS) == len(EngineEventKind)


def test_events_of_an_engine_stand_on_the_clock_of_the_record():
    timeline = Timeline()
    timeline.add("sent", 100.0)
    flat = [EngineEventKind.QUEUED, 0, 3, EngineEventKind.CHUNK, 250_000, 7, 1, 2, 8]
    timeline.add_engine_events(engine_events(flat), 100.5, turn=2)
    assert [event.name for event in timeline.events] == ["sent", "engine.queued", "engine.chunk"]
    assert [event.turn for event in timeline.events] == [0, 2, 2]
    assert timeline.events[2].at_s == 100.75
    assert timeline.events[2].numbers == {"tokens": 7, "steps": 1, "rows": 2, "step_tokens": 8}


def test_the_latest_time_of_a_phase_counts():
    spent = EngineEventKind.SPENT
    assert spent_by_phase([spent, 5, Phase.PROMPT, 5, spent, 9, Phase.PROMPT, 7]) == {Phase.PROMPT: 7}


@pytest.mark.parametrize("flat", [[99, 0], [EngineEventKind.CHUNK, 0, 1]])
def test_a_list_that_is_none_of_events_is_refused(flat):
    with pytest.raises(ValueError, match=r"valid|cut off"):
        list(engine_events(flat))
