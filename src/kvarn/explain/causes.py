"""Causes: seconds that a request might have been spared, by why, and who stood in the way.

gateway    its parts: the client, limits, admission, a replica that is expected, moderation, a failover
queue      waits by their reason, less what slow steps took of them
steps      what its own steps did for others, what a busy machine took, what was computed a second time
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from kvarn.explain.agents import (
    Agent,
    NameOf,
    Weigh,
    agents_of,
    by_memory,
    by_prompts,
    by_time,
    by_tokens,
    named,
)
from kvarn.explain.explanation import Cause, CauseCode, Part, Stage
from kvarn.explain.parts import EngineReading, Reading
from kvarn.explain.pieces import Piece
from kvarn.explain.words import count
from kvarn.explain.work import longest_step
from kvarn.observe.timeline import Event, Phase
from kvarn.wire.step_records import StepRecord

_PARTS = {
    "send": CauseCode.CLIENT_SEND,
    "limits": CauseCode.LIMIT,
    "admission": CauseCode.ADMISSION,
    "route": CauseCode.NO_REPLICA,
    "prepare": CauseCode.PREPARE,
    "moderation": CauseCode.MODERATION,
    "tools": CauseCode.TOOLS,
    "read": CauseCode.CLIENT_READ,
    "failover": CauseCode.FAILOVER,
}
"""Causes that are parts of the gateway."""
_WAITS = {
    Phase.WAIT_STEP: CauseCode.SHARED_STEPS,  # the step in flight was others' work
    Phase.WAIT_SLOT: CauseCode.QUEUE_SLOT,
    Phase.WAIT_BUDGET: CauseCode.QUEUE_BUDGET,
    Phase.WAIT_LATENCY: CauseCode.QUEUE_LATENCY,
    Phase.WAIT_BLOCKS: CauseCode.QUEUE_BLOCKS,
    Phase.WAIT_ADAPTER: CauseCode.QUEUE_ADAPTER,
    Phase.WAIT_FETCH: CauseCode.QUEUE_TIER,
    Phase.WAIT_MASK: CauseCode.QUEUE_GRAMMAR,
}
_WEIGHTS: dict[CauseCode, Weigh] = {
    CauseCode.QUEUE_BLOCKS: by_memory,
    CauseCode.QUEUE_BUDGET: by_tokens,
}
"""Weight of an agent; its time in the steps, where a cause is not here."""
Words = Callable[[], str]

_BEHIND = frozenset({CauseCode.QUEUE_SLOT, CauseCode.QUEUE_BUDGET, CauseCode.QUEUE_BLOCKS, CauseCode.QUEUE_LATENCY})
"""Waits for what others have."""
ENGINE_WAYS = ("to engine", "from engine")
_LATE_S = 0.02
"""Seconds on the way to an engine and back, from which on it did not listen."""


@dataclass(slots=True)
class Candidate:
    code: CauseCode
    seconds: float
    at_s: float
    """Seconds from the request's headers to when it first was."""
    agent: Words
    """Makes the words for its agent: they are asked for the largest cause alone."""
    largest_s: float
    """Seconds of the largest of its times, whose agent it is."""

    @property
    def cause(self) -> Cause:
        return Cause(code=self.code, seconds=self.seconds, agent=self.agent(), at_s=self.at_s)


class _Sums:
    """Causes in the making: the seconds of each are added."""

    def __init__(self) -> None:
        self._found: dict[CauseCode, Candidate] = {}

    def add(self, code: CauseCode, seconds: float, at_s: float, agent: Words = str) -> None:
        if seconds <= 0:
            return
        before = self._found.get(code)
        if before is None:
            self._found[code] = Candidate(code, seconds, at_s, agent, seconds)
            return
        before.seconds += seconds
        is_larger = seconds > before.largest_s
        before.agent = partial(_first_words, *((agent, before.agent) if is_larger else (before.agent, agent)))
        before.largest_s = max(before.largest_s, seconds)

    @property
    def largest_first(self) -> list[Candidate]:
        return sorted(self._found.values(), key=lambda cause: -cause.seconds)


def _first_words(*agents: Words) -> str:
    return next((words for agent in agents if (words := agent())), "")


def causes_of(reading: Reading, name_of: NameOf) -> list[Candidate]:
    """All that the request might have been spared, the largest first."""
    sums = _Sums()
    for part in reading.parts:
        if part.name == "replica":
            code = CauseCode.COLD_MODEL if reading.cold else CauseCode.NO_REPLICA
            sums.add(code, part.end_s - part.begin_s, part.begin_s)
        elif part.name in _PARTS:
            sums.add(_PARTS[part.name], part.end_s - part.begin_s, part.begin_s, partial(str, part.detail))
    _add_late(sums, reading)
    for turn in reading.turns:
        if not turn.moved:  # until its first token it is a part of the failover
            _add_waits(sums, turn, reading.begin_s, name_of)
        _add_steps(sums, turn, reading.begin_s, name_of)
        _add_preempted(sums, turn, reading.begin_s, name_of)
    return sums.largest_first


def in_flight_seconds(reading: Reading) -> float:
    """Seconds that a message may have waited for the step in flight, on the ways to engines."""
    ways_s = reading.seconds(*ENGINE_WAYS)
    return min(ways_s, sum(longest_step(turn.steps, turn.model) for turn in reading.turns if turn.steps is not None))


def _add_late(sums: _Sums, reading: Reading) -> None:
    """An engine whose process did not read or write: nobody knows on which way, so both count half."""
    late = [part for part in reading.parts if part.name in ENGINE_WAYS]
    seconds = sum(part.end_s - part.begin_s for part in late) - in_flight_seconds(reading)
    if seconds > _LATE_S:
        sums.add(CauseCode.SLOW_STEPS, seconds, late[0].begin_s, lambda: "the engine's process did not answer")


def _add_waits(sums: _Sums, turn: EngineReading, begin_s: float, name_of: NameOf) -> None:
    waits = [piece for piece in turn.pieces if piece.phase < Phase.PROMPT]
    if not waits:
        return
    accepted_s, wait_s = turn.told.begin_s, waits[-1].end_s - waits[0].begin_s
    slow_s = min(wait_s, sum(_slow(turn, waits[0].begin_s, waits[-1].end_s)))
    sums.add(CauseCode.SLOW_STEPS, slow_s, waits[0].begin_s - begin_s)
    left = 1 - slow_s / wait_s if wait_s else 0.0
    records = list(_records(turn, accepted_s, waits[-1].end_s))
    for piece in waits:
        code = _WAITS[piece.phase]
        agent: Words = str
        if code in _BEHIND and _is_overtaken(turn, records):
            code = CauseCode.QUEUE_PRIORITY
        if code in _BEHIND or code in (CauseCode.QUEUE_PRIORITY, CauseCode.SHARED_STEPS):
            agent = _agent(turn, records, code, name_of)
        elif code is CauseCode.QUEUE_ADAPTER:
            agent = _adapter(turn)
        sums.add(code, left * (piece.end_s - piece.begin_s), piece.begin_s - begin_s, agent)


def _adapter(turn: EngineReading) -> Words:
    return partial(str, "" if turn.traced is None else turn.traced.adapter)


def _agent(turn: EngineReading, records: list[StepRecord], code: CauseCode, name_of: NameOf) -> Words:
    return _words(turn, records, _WEIGHTS.get(code, by_time), name_of)


def _words(turn: EngineReading, records: Sequence[StepRecord], weigh: Weigh, name_of: NameOf) -> Words:
    """Makes words for the turns in these steps. Where too many rows were left out, those of answers are counted."""
    steps = turn.steps
    if steps is None or not records:
        return str

    def words() -> str:
        rows = sum(record.decode_rows for record in records)
        told = sum(record.prefill_tokens if weigh is by_tokens else len(record.rows) for record in records)
        if steps.complete or weigh is by_prompts or told > rows:
            return named(agents_of(steps, records, weigh), name_of)
        return f"{count(max(1, rows // len(records)), 'answer')} at once"

    return words


def _records(turn: EngineReading, begin_s: float, end_s: float) -> Iterable[StepRecord]:
    """Steps that ran at a time of the timeline's clock."""
    if turn.steps is None:
        return
    begin_us, end_us = (1e6 * (at_s - turn.told.begin_s) for at_s in (begin_s, end_s))
    for record in turn.steps.steps:
        if record.at_us < end_us and record.at_us + record.us > begin_us:
            yield record


def _slow(turn: EngineReading, begin_s: float, end_s: float) -> Iterable[float]:
    if turn.model is not None:
        for record in _records(turn, begin_s, end_s):
            yield turn.model.slow_s(record)


def _is_overtaken(turn: EngineReading, records: Iterable[StepRecord]) -> bool:
    """Whether most of what ran while a turn waited had come after it, with a better priority."""
    if turn.steps is None:
        return False
    own, all_s, better_s = turn.steps.turns[0], 0.0, 0.0
    for agent in agents_of(turn.steps, records, by_time):
        all_s += agent.weight
        better_s += agent.weight if _overtakes(agent, own.priority) else 0.0
    return better_s > all_s / 2


def _overtakes(agent: Agent, priority: int) -> bool:
    return agent.turn.accepted_us > 0 and agent.turn.priority < priority


def _add_steps(sums: _Sums, turn: EngineReading, begin_s: float, name_of: NameOf) -> None:
    if not turn.own:
        _add_chunks(sums, turn, begin_s)
        return
    assert turn.steps is not None
    accepted_s, since_s = turn.told.begin_s, turn.pieces[0].begin_s if turn.pieces else 0.0
    own = [step for step in turn.own if accepted_s + step.end_us / 1e6 > since_s and not step.again]
    if not own:
        return
    at_s = accepted_s + own[0].record.at_us / 1e6 - begin_s
    prompts_s, shared_s = sum(step.prompts_s for step in own), sum(step.shared_s for step in own)
    shared_s += sum(turn.other_seconds(piece) for piece in turn.pieces if piece.phase is Phase.DECODE)
    weigh = by_prompts if prompts_s > shared_s / 2 else by_time
    records = [step.record for step in own if step.shared_s > 0]
    sums.add(CauseCode.SHARED_STEPS, shared_s, at_s, _words(turn, records, weigh, name_of))
    slow = [step for step in own if step.slow_s > 0]
    if slow:
        slow_at_s = accepted_s + slow[0].record.at_us / 1e6 - begin_s
        sums.add(CauseCode.SLOW_STEPS, sum(step.slow_s for step in slow), slow_at_s)
    rejected = sum(step.proposed - step.accepted for step in own)
    if turn.model is not None:
        wrong = count(rejected, "proposal")
        sums.add(
            CauseCode.REJECTED_PROPOSALS,
            rejected * turn.model.factor * turn.model.times.decode_row_s,
            at_s,
            lambda: wrong,
        )


def _add_chunks(sums: _Sums, turn: EngineReading, begin_s: float) -> None:
    """Others' share of a prompt's steps by what the engine told of its chunks: their tokens."""
    for piece in turn.pieces:
        for chunk, chunk_s, end_s in piece.chunk_times():
            sums.add(CauseCode.SHARED_STEPS, (1 - _own_share(chunk)) * (end_s - chunk_s), chunk_s - begin_s)


def _own_share(chunk: Event) -> float:
    return chunk.numbers["tokens"] / max(1.0, chunk.numbers["step_tokens"])


def _add_preempted(sums: _Sums, turn: EngineReading, begin_s: float, name_of: NameOf) -> None:
    for piece in turn.pieces:
        if piece.phase is Phase.PREEMPTED or piece.again:
            records = list(_records(turn, piece.begin_s, piece.end_s))
            agent = _agent(turn, records, CauseCode.PREEMPTED, name_of)
            sums.add(CauseCode.PREEMPTED, piece.end_s - piece.begin_s, piece.begin_s - begin_s, agent)


def own_prompt_seconds(reading: Reading) -> float:
    """Seconds in which own prompts were computed, others' work in the same steps taken off."""
    total = 0.0
    for turn in reading.turns:
        if turn.moved:  # until its first token it is a part of the failover
            continue
        if turn.own:
            total += sum(step.own_s for step in turn.own if step.is_prompt and not step.again)
        else:
            total += sum(_own_chunks(piece) for piece in turn.pieces if not piece.again)
    return total or reading.seconds("prefill")


def _own_chunks(piece: Piece) -> float:
    return sum((end_s - begin_s) * _own_share(chunk) for chunk, begin_s, end_s in piece.chunk_times())


def own_work_seconds(reading: Reading) -> float:
    """Seconds that the model worked for the request: its own prompt, and its own tokens."""
    decode_s = 0.0
    for turn in reading.turns:
        if turn.own:
            decode_s += sum(step.own_s for step in turn.own if not step.is_prompt and not step.again)
        else:
            decode_s += sum(piece.end_s - piece.begin_s for piece in turn.pieces if piece.phase is Phase.DECODE)
    if not reading.turns:  # another server
        decode_s = reading.seconds("decode")
    return min(reading.total_s, own_prompt_seconds(reading) + decode_s)


def unexplained_seconds(parts: Iterable[Part]) -> float:
    """Seconds that no event and no step explains."""
    total = 0.0
    for part in parts:
        if part.stage is Stage.UNEXPLAINED:
            total += part.end_s - part.begin_s
        else:
            total += unexplained_seconds(part.parts)
    return total
