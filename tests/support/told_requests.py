"""Requests made of events as components would have told them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from explained_world import Answered
from kvarn.observe.timeline import EngineEventKind, Event, Phase, Timeline, engine_events
from kvarn.observe.traces.context import begin
from kvarn.observe.traces.traced import TracedRequest, TracedTool, TracedTurn

__all__ = ["FINISHED", "FIRST", "K", "Phase", "told_request", "waiting"]

K = EngineEventKind
_ACCEPTED_S = 0.061
_SENT_S = 0.06


def waiting(phase: Phase, us: int) -> list[int]:
    """A turn that waited so long for one reason, then computed its prompt for 200 ms."""
    ready = {Phase.WAIT_MASK: K.MASK_READY, Phase.WAIT_ADAPTER: K.ADAPTER_READY}.get(phase)
    first = us + 200_000
    return [
        *(K.QUEUED, 0, 2),
        *(() if ready is None else (ready, us)),
        *(K.SCHEDULED, us, 0, 0),
        *(K.CHUNK, us, 100, 1, 1, 100),
        *(K.FIRST_TOKEN, first),
        *((K.SPENT, first, phase, us) if us else ()),
        *(K.SPENT, first, Phase.PROMPT, 200_000),
    ]


FIRST = waiting(Phase.WAIT_STEP, 0)
FINISHED = [K.FINISHED, 1_500_000, 10, 0, 0, 0]


def told_request(
    engine: Sequence[int] = (),
    *,
    adapter: str = "",
    held_s: float = 0.0,
    held: Mapping[str, float] | None = None,
    moved_s: tuple[float, float] | None = None,
    moved: Sequence[int] = (),
    end_s: float | None = None,
    turn: TracedTurn | None = None,
) -> Answered:
    """A request of one turn. `held_s`: it waited so long for a replica. `moved_s`: when its replica was lost, and when
    the first token of the next one came, which told `moved`."""
    timeline = Timeline()
    timeline.add("received", -held_s)
    if held is not None:
        timeline.add("held", 0.0, held)
    for place, name in enumerate(("authenticated", "read", "parsed", "resolved", "stage.admission")):
        timeline.add(name, 0.01 * place + 0.01)
    timeline.add("sent", _SENT_S)
    timeline.add_engine_events(engine_events(engine), _ACCEPTED_S, 1)
    last_s = max([event.at_s for event in timeline.events])
    replica = "tiny-0"
    if moved_s is not None:
        lost_s, first_s = moved_s
        replica = "tiny-1"
        timeline.add("sent", first_s - 0.3)
        timeline.add("failover", first_s, {"pause_s": first_s - lost_s})
        timeline.add_engine_events(engine_events(moved), first_s - 0.2, 2)
        last_s = max([event.at_s for event in timeline.events])
    end_s = last_s + 0.001 if end_s is None else end_s
    for name in ("generated", "settled", "ended"):
        timeline.add(name, end_s)
        end_s += 0.001
    turns = [turn or TracedTurn(id="mine", model="tiny", adapter=adapter, replica=replica, output_tokens=10)]
    return answered(timeline.events, turns)


def answered(events: Sequence[Event], turns: Sequence[TracedTurn], tools: Sequence[TracedTool] = ()) -> Answered:
    request = TracedRequest(
        trace=begin("mine", None),
        name="POST /v1/chat/completions",
        request_id="mine",
        method="POST",
        route="/v1/chat/completions",
        status=200,
        model="tiny",
        wall_clock_offset_s=0.0,
        events=events,
        turns=turns,
        tools=tools,
    )
    gateway = [event.at_s for event in events if not event.name.startswith("engine.")]
    return Answered(request, {}, gateway[-1] - gateway[0])
