"""Answers of an engine about its steps: those of one turn; the latest, with what runs and what waits, and why."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from kvarn.costs.step_times import StepTimes
from kvarn.engine.request import Request, Sequence
from kvarn.engine.scheduler import Scheduler
from kvarn.engine.step_log import StepLog
from kvarn.engine.step_reports import FloorOf, Place, StepReport
from kvarn.observe.timeline import Phase, waiting_reason
from kvarn.wire.step_records import (
    MAX_GROUPS,
    MAX_LIVE_STEPS,
    MAX_ROWS,
    MAX_STEPS,
    LiveSteps,
    QueuedTurns,
    RunningTurn,
    TurnSteps,
)

_ENDS = MAX_STEPS // 4
"""Steps at each end of a turn that are told however many there are."""


def turn_steps(log: StepLog, scheduler: Scheduler, request_id: str, now: float, floor_of: FloorOf) -> TurnSteps | None:
    """Steps of a turn that runs or ran; None: it is not known (any more)."""
    found = log.find(request_id)
    if found is None:
        return None
    key, turn = found
    end_us = turn.ended_us if turn.ended_us is not None else round(now * 1e6)
    places = list(log.between(turn.accepted_us, end_us))
    chosen = _choose(places, MAX_STEPS)
    all_rows = sum([segment.num_rows(index) for segment, index in chosen]) <= MAX_ROWS
    report = StepReport(log, floor_of, turn.accepted_us)
    report.place(key)
    report.add(chosen, only=None if all_rows else key)
    return TurnSteps(
        turns=report.turns,
        steps=report.steps,
        complete=all_rows and len(chosen) == len(places) and log.forgotten_until_us <= turn.accepted_us,
        times=_times(scheduler),
        kv_blocks=scheduler.memory.pool.num_blocks,
    )


def live_steps(
    scheduler: Scheduler,
    log: StepLog,
    preparing: Iterable[Request],
    after_step: int,
    now: float,
    floor_of: FloorOf,
) -> LiveSteps:
    """Steps after this one, and what runs and waits. `preparing`: requests whose grammars are not ready."""
    report, pool = StepReport(log, floor_of), scheduler.memory.pool
    report.add(log.since(after_step, MAX_LIVE_STEPS))
    running = _running(scheduler.running, report)
    return LiveSteps(
        now_us=round(now * 1e6),
        turns=report.turns,
        steps=report.steps,
        running=running,
        queue=_queue(scheduler, preparing, now),
        times=_times(scheduler),
        kv_blocks=pool.num_blocks,
        free_blocks=pool.num_available,
        cached_blocks=pool.num_idle,
    )


def _choose(places: list[Place], limit: int) -> list[Place]:
    """At most so many of these steps: the first, the last, and between them the slowest."""
    if len(places) <= limit:
        return places
    between = range(_ENDS, len(places) - _ENDS)
    slowest = heapq.nlargest(limit - 2 * _ENDS, between, key=lambda i: places[i][0].numbers(places[i][1])[0])
    return [*places[:_ENDS], *(places[i] for i in sorted(slowest)), *places[len(places) - _ENDS :]]


def _times(scheduler: Scheduler) -> StepTimes | None:
    return scheduler.step_time.fitted if scheduler.step_time.is_measured else None


def _running(sequences: Iterable[Sequence], report: StepReport) -> list[RunningTurn]:
    by_turn: dict[int, list[Sequence]] = {}
    for sequence in sequences:
        by_turn.setdefault(report.place_of(sequence.request), []).append(sequence)
    return [
        RunningTurn(
            turn=place,
            choices=len(choices),
            computed_tokens=sum([each.num_computed_tokens for each in choices]),
            known_tokens=sum([len(each.tokens) for each in choices]),
            output_tokens=sum([each.num_outputs for each in choices]),
            blocks=sum([len(each.blocks) for each in choices]),
        )
        for place, choices in by_turn.items()
    ]


def _queue(scheduler: Scheduler, preparing: Iterable[Request], now: float) -> list[QueuedTurns]:
    common = scheduler.waits.reason
    groups: dict[tuple[str, int, Phase], list[float]] = {}  # sequences, tokens, arrival of the oldest
    waiting = [(each, _reason(each.request.turn.phase, common)) for each in scheduler.queue]
    waiting += [(request.sequences[0], Phase.WAIT_MASK) for request in preparing]
    for sequence, reason in waiting:
        group = groups.setdefault(
            (sequence.account.name, sequence.priority, reason), [0, 0, sequence.request.arrival_s]
        )
        group[0] += 1
        group[1] += sequence.num_tokens
        group[2] = min(group[2], sequence.request.arrival_s)
    largest = sorted(groups.items(), key=lambda each: each[1][0], reverse=True)[:MAX_GROUPS]
    return [
        QueuedTurns(tenant, priority, waiting_reason(reason), int(sequences), int(tokens), now - oldest)
        for (tenant, priority, reason), (sequences, tokens, oldest) in largest
    ]


def _reason(own: Phase | None, common: Phase) -> Phase:
    """Why a queued sequence waits; one whose siblings run waits as all do."""
    return common if own is None or own in (Phase.PROMPT, Phase.DECODE) else own
