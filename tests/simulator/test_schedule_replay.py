"""A recorded schedule is planned again to the last block, and a changed one is not."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from kvarn.clock.virtual import VirtualClock
from kvarn.config.engine import EngineConfig
from kvarn.config.speculation import SpeculationConfig
from kvarn.costs.step_times import StepTimes, typical_steps
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.engine.plan import NewSequence
from kvarn.engine.schedule_record import Add, Event, PlannedRow, RecordingCore, Start, Step
from kvarn.engine.step_time import StepTimeModel
from kvarn.replica.server.schedule_file import recording_core
from kvarn.simulator.schedule_replay import Replayed, ScheduleReplayError, read_schedule, replay
from kvarn.wire.messages import Grammar, Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.wire.sessions import SessionEvent, SessionNews, SessionTurn
from kvarn.worker.modelled import ModelledExecutor
from kvarn.worker.proposers.ngram import NgramProposer

TIMES = StepTimes(fixed_s=1e-3, prefill_token_s=5e-5, decode_row_s=1e-4, decode_token_s=1e-6)


def parts_of(executor: ModelledExecutor, *, guesses: bool = False, **config: object) -> EngineParts:
    expected = [(shape, TIMES.seconds(shape)) for shape in typical_steps()]
    proposer = NgramProposer(SpeculationConfig()) if guesses else None
    return EngineParts(executor, EngineConfig(**config), step_time=StepTimeModel(expected=expected), proposer=proposer)


def drive(core: EngineCore, clock: VirtualClock, seed: int, requests: int = 60) -> None:
    """Conversations that share beginnings, more than the cache holds, some given up."""
    draw = random.Random(seed)
    came, live = 0, []
    while came < requests or core.has_work():
        while came < requests and draw.random() < 0.3:
            stem = [300 + draw.randrange(3)] * draw.randrange(1, 90)
            prompt = stem + [400 + draw.randrange(500) for _ in range(draw.randrange(1, 60))]
            sampling = SamplingParams(seed=came, max_tokens=draw.randrange(1, 40), n=draw.choice([1, 1, 2]))
            session = SessionTurn(id=b"s%d" % draw.randrange(4), keep_s=5.0)
            submit = Submit(
                request_id=str(came),
                prompt_token_ids=prompt,
                sampling=sampling,
                tenant=draw.choice(["a", "b"]),
                priority=draw.choice([0, 0, 10]),
                session=session,
                ttft_left_s=draw.choice([None, 0.05]),
            )
            core.add(submit)
            live.append(submit.request_id)
            came += 1
        if live and draw.random() < 0.02:
            core.abort(draw.choice(live))
        if draw.random() < 0.02:
            core.take_session_news(SessionNews(session=b"s1", event=SessionEvent.RETURNS))
        core.step()
        if draw.random() < 0.2:
            core.stats()  # who asks changes nothing
        clock.sleep(draw.random() * 1e-3)
    core.forget_tenant("a")
    core.start_draining()


def repeating(token: int, _sequence: NewSequence) -> int:
    """Text that goes round, so that guesses are right for a while."""
    return 300 + (token + 1) % 7 + (token % 5 == 0)


def record(max_in_flight: int = 1, seed: int = 1, *, guesses: bool = False, **config: object) -> list[Event]:
    """A run whose steps take times that no model foresees."""
    clock, noise, events = VirtualClock(50.0), random.Random(seed + 1), []
    executor = ModelledExecutor(
        lambda shape: TIMES.seconds(shape) * (0.5 + noise.random()),
        clock,
        repeating,
        num_blocks=40,
        max_context_length=512,
        max_in_flight=max_in_flight,
    )
    config = {"max_num_seqs": 8, "token_budget": 96, "tpot_target_ms": 4.0} | config
    core = RecordingCore(parts_of(executor, guesses=guesses, **config), clock.now, events.append)
    drive(core, clock, seed)
    return events


def encoded_and_read(events: list[Event]) -> list[Event]:
    return [msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=Event) for event in events]


@pytest.mark.parametrize("max_in_flight", [1, 2])
@pytest.mark.parametrize("guesses", [False, True])
def test_every_step_is_planned_again(max_in_flight: int, guesses: bool):
    recorded = encoded_and_read(record(max_in_flight, guesses=guesses))
    proposals = [row.num_proposals for each in recorded if isinstance(each, Step) for row in rows_of(each)]
    assert any(proposals) == guesses
    outcome = replay(recorded)
    assert outcome.difference == ""
    assert outcome.identical == outcome.steps > 100
    assert outcome.requests == 60
    assert outcome.preemptions > 0
    assert outcome.cached_tokens > 0


def rows_of(step: Step) -> list[PlannedRow]:
    return [row for each in step.planned for row in each.rows]


def slower(event: Event) -> Event:
    if not isinstance(event, Step) or event.taken is None:
        return event
    taken = msgspec.structs.replace(event.taken, elapsed_s=5.0 * event.taken.elapsed_s)
    return msgspec.structs.replace(event, taken=taken)


def test_other_step_times_are_seen_in_the_plans():
    assert "step" in replay([slower(event) for event in record()]).difference


def test_another_configuration_is_seen_in_the_plans():
    events = record()
    began = events[0]
    assert isinstance(began, Start)
    config = began.engine_config.model_copy(update={"max_num_seqs": 4})
    changed = [msgspec.structs.replace(began, config=config.model_dump_json()), *events[1:]]
    outcome = replay(changed)
    assert not outcome.is_identical
    assert outcome.identical < outcome.steps


def test_a_step_that_is_missing_is_named():
    events = record()
    places = [place for place, event in enumerate(events) if isinstance(event, Step) and event.planned]
    del events[places[20]]
    assert not replay(events).is_identical


def test_what_decides_with_more_than_is_recorded_is_refused():
    events = record()
    place = next(place for place, event in enumerate(events) if isinstance(event, Add))
    add = events[place]
    grammar = Grammar(text="start: /a+/")
    events[place] = msgspec.structs.replace(add, submit=msgspec.structs.replace(add.submit, grammar=grammar))
    with pytest.raises(ScheduleReplayError, match="structured answers"):
        replay(events)
    with pytest.raises(ScheduleReplayError, match="cut off"):
        replay(events[1:])


def test_a_file_that_was_cut_off_is_read_up_to_there(tmp_path: Path):
    clock = VirtualClock()
    executor = ModelledExecutor(TIMES.seconds, clock, num_blocks=40, max_context_length=512)
    core = recording_core(tmp_path / "new", "host/model/0", parts_of(executor), clock.now)
    drive(core, clock, seed=3, requests=10)
    (path,) = (tmp_path / "new").iterdir()
    assert path.name.startswith("host_model_0-")
    whole = list(read_schedule(path))
    assert replay(whole).is_identical
    path.write_bytes(path.read_bytes()[:-3])
    cut = list(read_schedule(path))
    assert cut == whole[:-1]
    assert replay(cut).is_identical


def test_nothing_but_the_record_is_needed_for_an_empty_one():
    began = next(event for event in record() if isinstance(event, Start))
    assert replay([began]) == Replayed()
