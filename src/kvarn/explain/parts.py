"""Parts of a request: its timeline cut into pieces that follow one another, and what is known of each turn.

Their ends are moments of the timeline, each not before the one before it: so they sum to the total, whatever is
missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from kvarn.explain.explanation import Part, Stage
from kvarn.explain.piece_parts import decode_parts, prefill_part, queue_part
from kvarn.explain.pieces import Piece, pieces_of
from kvarn.explain.step_model import StepModel, model_of
from kvarn.explain.work import OwnStep, other_seconds, own_steps
from kvarn.observe.segments import EngineTurn, Segment, engine_turns, segments
from kvarn.observe.timeline import Event, Phase
from kvarn.observe.traces.traced import TracedRequest, TracedTurn
from kvarn.wire.step_records import TurnSteps

_GATEWAY = {
    "authenticated": ("authenticate", Stage.ADMISSION),
    "read": ("send", Stage.CLIENT),
    "parsed": ("prepare", Stage.TEXT),
    "held": ("replica", Stage.ADMISSION),
    "resolved": ("prepare", Stage.TEXT),
    "templated": ("prepare", Stage.TEXT),
    "tokenized": ("prepare", Stage.TEXT),
    "prompted": ("prepare", Stage.TEXT),
    "stage.response_cache": ("response cache", Stage.ADMISSION),
    "first_token": ("response cache", Stage.ADMISSION),  # of an engine's turn it is no part
    "generated": ("response cache", Stage.ADMISSION),
    "stage.limits": ("limits", Stage.ADMISSION),
    "stage.replica": ("route", Stage.ADMISSION),
    "moderated": ("moderation", Stage.TEXT),
    "tools": ("tools", Stage.TRANSFER),
    "sent": ("to engine", Stage.TRANSFER),
    "settled": ("settle", Stage.ADMISSION),
    "ended": ("read", Stage.CLIENT),
}
"""Names of the gateway's parts by the event that ends them; other stages are admission."""
_PREPARED = {
    "parsed": "the body",
    "resolved": "the model",
    "templated": "the chat template",
    "tokenized": "the tokenizer",
}
"""Words for what prepares a prompt, by the event that ends it."""


_ROUNDING_US = 2.0


@dataclass(slots=True)
class EngineReading:
    """A turn of an engine, as far as it is part of the request."""

    told: EngineTurn
    traced: TracedTurn | None
    steps: TurnSteps | None
    own: Sequence[OwnStep]
    whole: bool
    """All steps that it was in are known."""
    model: StepModel | None
    """None: no step times are learned, or no steps are known."""
    pieces: list[Piece] = field(default_factory=list)
    moved: bool = False
    """It went on after a failover."""

    def other_seconds(self, piece: Piece) -> float:
        """Seconds of steps without the turn, while it decoded."""
        if self.steps is None or not self.whole:
            return 0.0
        return other_seconds(self.steps, *self.microseconds(piece))

    def covered_seconds(self, piece: Piece) -> float:
        """Seconds of a piece in which a step ran."""
        if self.steps is None:
            return 0.0
        begin_us, end_us = self.microseconds(piece)
        covered_us = sum(
            max(0.0, min(end_us, record.at_us + record.us) - max(begin_us, record.at_us)) for record in self.steps.steps
        )
        return covered_us / 1e6 + _ROUNDING_US / 1e6

    def microseconds(self, piece: Piece) -> tuple[float, float]:
        """A piece on the clock of the steps. A step is in the piece in which it begins: after the last one's result."""
        accepted_s = self.told.begin_s
        return (piece.begin_s - accepted_s) * 1e6 - _ROUNDING_US, (piece.end_s - accepted_s) * 1e6 - _ROUNDING_US


@dataclass(slots=True)
class Reading:
    """A request's parts, and its turns in engines."""

    begin_s: float
    total_s: float
    parts: list[Part]
    turns: list[EngineReading]
    cold: bool = False
    """It waited for a model that is scaled down to none while nobody asks."""

    def seconds(self, *names: str) -> float:
        return sum(part.end_s - part.begin_s for part in self.parts if part.name in names)


class _Tiles:
    """Parts in the making: each begins where the one before it ends."""

    def __init__(self, begin_s: float) -> None:
        self.begin_s = begin_s
        self.at_s = 0.0
        self.parts: list[Part] = []

    def until(self, end_s: float, name: str, stage: Stage, detail: str = "", parts: Sequence[Part] = ()) -> None:
        """A part up to a moment of the timeline; parts of one name that follow one another are one."""
        end = max(self.at_s, end_s - self.begin_s)
        if end == self.at_s:
            return
        last = self.parts[-1] if self.parts else None
        if last is not None and last.name == name and not parts:
            self.parts[-1] = msgspec.structs.replace(last, end_s=end, detail=last.detail or detail)
        else:
            self.parts.append(
                Part(name=name, stage=stage, begin_s=self.at_s, end_s=end, detail=detail, parts=list(parts))
            )
        self.at_s = end


def read(request: TracedRequest, steps: Mapping[str, TurnSteps]) -> Reading:
    """Read a request's timeline. `steps`: by the engine's ids of turns."""
    begin_s = request.events[0].at_s
    tiles, reading = _Tiles(begin_s), Reading(begin_s, 0.0, [], [])
    turns, prepared = iter(request.turns), dict[str, float]()
    for segment in segments(request.events):
        event = segment.event
        if event is None:
            _read_turn(tiles, reading, segment, next(turns, None), request.events, steps)
            continue
        name, stage = _GATEWAY.get(event.name, ("admission", Stage.ADMISSION))
        reading.cold = reading.cold or bool(event.name == "held" and event.numbers.get("cold"))
        if event.name in _PREPARED:
            prepared[event.name] = prepared.get(event.name, 0.0) + segment.end_s - segment.begin_s
        detail = _slowest_tool(request, segment) if event.name == "tools" else ""
        tiles.until(segment.end_s, name, stage, detail)
    reading.parts, reading.total_s = _with_most_of(tiles.parts, prepared), tiles.at_s
    return reading


def _slowest_tool(request: TracedRequest, segment: Segment) -> str:
    """The tool whose call took longest in a part: others ran beside it."""
    mine = [each for each in request.tools if segment.begin_s <= each.end_s <= segment.end_s]
    return max(mine, key=lambda each: each.end_s - each.begin_s).name if mine else ""


def _with_most_of(parts: list[Part], prepared: Mapping[str, float]) -> list[Part]:
    """Parts, with what most of the longest `prepare` went to as its detail, where it is most of all that prepared."""
    longest = max(
        (part for part in parts if part.name == "prepare"), key=lambda each: each.end_s - each.begin_s, default=None
    )
    event = max(prepared, key=lambda each: prepared[each], default="")
    if longest is None or prepared[event] <= sum(prepared.values()) / 2:
        return parts
    return [msgspec.structs.replace(part, detail=_PREPARED[event]) if part is longest else part for part in parts]


def _read_turn(
    tiles: _Tiles,
    reading: Reading,
    segment: Segment,
    traced: TracedTurn | None,
    events: Sequence[Event],
    steps: Mapping[str, TurnSteps],
) -> None:
    told = engine_turns(each for each in events if segment.begin_s <= each.at_s <= segment.end_s)
    turns = [_reading_of(turn, traced, steps) for turn in told]
    begin_s = segment.begin_s
    moves = [event for event in segment.turn if event.name == "failover"]
    going: EngineReading | None = None
    for place in range(len(moves) + 1):
        moved = moves[place] if place < len(moves) else None
        end_s = segment.end_s if moved is None else max(begin_s, moved.at_s - moved.numbers["pause_s"])
        mine = [turn for turn in turns if turn is not going and begin_s <= turn.told.begin_s < end_s]
        if going is None and mine:  # of several prompts, the one that took longest
            going = max(mine, key=lambda turn: turn.told.end_s)
            reading.turns.append(going)
        _tile_turn(tiles, going, traced, segment.turn, begin_s, end_s, lost=moved is not None)
        if moved is not None:
            going = max(
                (turn for turn in turns if end_s <= turn.told.begin_s <= moved.at_s),
                key=lambda turn: turn.told.begin_s,
                default=None,
            )
            if going is not None:
                going.moved = True
                reading.turns.append(going)
            _tile_failover(tiles, going, moved.at_s)
            begin_s = moved.at_s


def _reading_of(told: EngineTurn, traced: TracedTurn | None, steps: Mapping[str, TurnSteps]) -> EngineReading:
    """A turn with its steps. Several prompts, or another replica that went on, have ids that begin with the turn's:
    those steps are its own that end when it ended."""
    lasted_us = (told.end_s - told.begin_s) * 1e6
    mine = (
        {}
        if traced is None
        else {
            k: v
            for k, v in steps.items()
            if k == traced.id or k[: len(traced.id) + 1] in (f"{traced.id}~", f"{traced.id}-")
        }
    )
    found: TurnSteps | None = None
    if len(mine) == 1:
        found = next(iter(mine.values()))
    elif mine:
        found = min(mine.values(), key=lambda each: abs(_last_us(each) - lasted_us))
    if found is None or not found.turns:
        return EngineReading(told, traced, None, [], False, None)
    finished = told.first.get("finished")
    rows = [row for record in found.steps for row in record.rows if row.turn == 0]
    whole = found.complete
    if not whole and finished is not None:  # only rows of others may be missing
        whole = sum(row.output_tokens for row in rows) == finished.numbers["output_tokens"]
    model = model_of(found)
    return EngineReading(told, traced, found, own_steps(found, model, whole=whole), whole, model)


def _last_us(steps: TurnSteps) -> float:
    own = [record for record in steps.steps if any(row.turn == 0 for row in record.rows)]
    return own[-1].at_us + own[-1].us if own else 0.0


def _tile_turn(
    tiles: _Tiles,
    turn: EngineReading | None,
    traced: TracedTurn | None,
    events: Sequence[Event],
    begin_s: float,
    end_s: float,
    *,
    lost: bool,
) -> None:
    """Parts of a turn, or of what an engine did of it before it was lost, from `begin_s` to `end_s`."""
    if turn is None:
        _tile_untold(tiles, traced, events, end_s, lost=lost)
        return
    told = turn.told
    if told.begin_s > begin_s:
        tiles.until(told.begin_s, "to engine", Stage.TRANSFER)
    worked_s = _end_of_work(turn, end_s)
    for piece in pieces_of(told, worked_s):
        if piece.end_s > begin_s:
            piece = piece._replace(begin_s=max(piece.begin_s, begin_s))
            turn.pieces.append(piece)
            _tile_piece(tiles, turn, piece)
    if not lost and worked_s < end_s:
        back_s = max(0.0, told.begin_s - events[0].at_s) if not turn.moved else 0.0
        tiles.until(min(end_s, worked_s + back_s), "from engine", Stage.TRANSFER)
        tiles.until(end_s, "read", Stage.CLIENT, "the answer had ended, and was not read yet")
    tiles.until(end_s, "unexplained", Stage.UNEXPLAINED)


def _end_of_work(turn: EngineReading, end_s: float) -> float:
    """Time at which the engine ended a turn. It does not tell where the gateway ended it (a stop
    string), or it was lost."""
    finished = turn.told.first.get("finished")
    if finished is not None:
        return min(end_s, finished.at_s)
    if turn.own and turn.whole:
        return min(end_s, turn.told.begin_s + turn.own[-1].end_us / 1e6)
    return end_s


def _tile_untold(
    tiles: _Tiles, traced: TracedTurn | None, events: Sequence[Event], end_s: float, *, lost: bool
) -> None:
    """A turn of which no engine told anything."""
    if lost:
        tiles.until(end_s, "failover", Stage.TRANSFER, "sent to a replica that was lost")
    elif traced is not None and traced.outcome == "finished" and not traced.replica:
        first = next((event for event in events if event.name == "first_token"), None)
        if first is not None:
            tiles.until(first.at_s, "prefill", Stage.PREFILL, "another server, to its first token")
        tiles.until(end_s, "decode", Stage.DECODE, "another server")
    elif traced is not None and traced.outcome == "finished" and not traced.output_tokens:
        tiles.until(end_s, "prefill", Stage.PREFILL)
    else:
        tiles.until(end_s, "unexplained", Stage.UNEXPLAINED, "the engine told nothing of it")


def _tile_failover(tiles: _Tiles, turn: EngineReading | None, end_s: float) -> None:
    """The gap from when a replica was lost to the first token of the one that went on, as one part."""
    inner = _Tiles(tiles.begin_s)
    inner.at_s = tiles.at_s
    if turn is not None:
        inner.until(turn.told.begin_s, "another replica", Stage.TRANSFER)
        for piece in pieces_of(turn.told, end_s):
            _tile_piece(inner, turn, piece._replace(end_s=min(piece.end_s, end_s)))
    inner.until(end_s, "another replica", Stage.TRANSFER)
    name = "" if turn is None or turn.traced is None else turn.traced.replica
    detail = f"{name} went on" if name else "another replica went on"
    tiles.until(end_s, "failover", Stage.TRANSFER, detail, inner.parts)


def _tile_piece(tiles: _Tiles, turn: EngineReading, piece: Piece) -> None:
    begin_s, end_s = tiles.at_s, piece.end_s - tiles.begin_s
    if end_s <= begin_s:
        return
    if piece.phase < Phase.PROMPT:
        inner = queue_part(piece.phase, begin_s, end_s)
        last = tiles.parts[-1] if tiles.parts else None
        if last is not None and last.name == "queue":
            tiles.parts[-1] = msgspec.structs.replace(last, end_s=end_s, parts=[*last.parts, inner])
            tiles.at_s = end_s
        else:
            tiles.until(piece.end_s, "queue", Stage.QUEUE, "", [inner])
    elif piece.phase is Phase.PROMPT:
        detail, parts = prefill_part(piece, turn.told, begin_s, end_s, tiles.begin_s)
        tiles.until(piece.end_s, "prefill again" if piece.again else "prefill", Stage.PREFILL, detail, parts)
    elif piece.phase is Phase.PREEMPTED:
        tiles.until(piece.end_s, "preempted", Stage.QUEUE)
    else:
        begin_us, end_us = turn.microseconds(piece)
        own = [step for step in turn.own if begin_us <= step.record.at_us < end_us]
        detail, parts = decode_parts(
            own,
            begin_s,
            end_s,
            skipped_s=turn.other_seconds(piece),
            covered_s=turn.covered_seconds(piece),
            whole=turn.whole,
        )
        tiles.until(piece.end_s, "decode", Stage.DECODE, detail, parts)
