"""Records of an engine's steps: who was in each, what it gave them, how long it took.

An engine keeps those of the last hour (`kvarn.engine.step_log`). A turn is numbered within what is told: `turns[i]` is
turn `i`. The records of steps do not overlap, also where several steps are in flight: a step begins when it is planned,
or when the one before it has ended.
"""

from __future__ import annotations

import msgspec

from kvarn.costs.step_times import StepTimes

MAX_STEPS = 2_000
MAX_ROWS = 20_000
"""Rows of all steps that are told of a turn."""


class StepRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Work of one sequence in a step: of a turn with several choices each has a row of its own."""

    turn: int
    computed_tokens: int
    """Known tokens and proposals that went through the model; 1 for a row that decodes."""
    output_tokens: int
    """Tokens drawn and kept; 0 for a chunk of a prompt that goes on, and where the sequence was stopped meanwhile."""


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    number: int
    at_us: int
    """Its beginning; see `TurnSteps` and `LiveSteps`."""
    us: int
    """Microseconds from its beginning to the next step's or, where none followed at once, to its result."""
    floor_us: int
    """The least that the device needs for it; 0: not known."""
    prefill_tokens: int
    prefill_pairs: int
    decode_rows: int
    decode_context: int
    proposals: int
    free_blocks: int
    """KV blocks that nobody held once it was planned."""
    rows: list[StepRow]
    """Empty for a step that only moved KV blocks. See `TurnSteps.complete`."""


class StepTurn(msgspec.Struct, frozen=True):
    """A turn that steps speak of."""

    request_id: str
    """The engine's id of it."""
    tenant: str
    adapter: str
    priority: int
    prompt_tokens: int
    cached_tokens: int
    accepted_us: int
    """Acceptance by the engine, on the clock of the steps."""


class TurnSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps from when an engine accepted a turn to when it ended; times are microseconds since it was accepted. The
    step that ran at that moment is the first, and began before 0."""

    turns: list[StepTurn]
    """The turn itself first."""
    steps: list[StepRecord]
    complete: bool
    """False: the first of them are forgotten, or there were more than `MAX_STEPS`, or more than `MAX_ROWS` rows in
    them. Of too many steps the first, the last, and between those the slowest are told. Of too many rows those are left
    out that decode one token of another turn: `decode_rows` counts them still."""
    times: StepTimes | None
    """Learned step times; None: not yet measured."""
    kv_blocks: int
    """KV blocks of the engine."""


class RunningTurn(msgspec.Struct, frozen=True, gc=False):
    """A turn that has a slot, its choices together."""

    turn: int
    choices: int
    """Its choices that run."""
    computed_tokens: int
    known_tokens: int
    """Tokens of prompt and answer; more than are computed: the others are still to be."""
    output_tokens: int
    blocks: int


class QueuedTurns(msgspec.Struct, frozen=True, gc=False):
    """Sequences that wait for the same reason."""

    tenant: str
    priority: int
    reason: str
    """Name of a `kvarn.observe.timeline.Phase`, in lower case."""
    sequences: int
    tokens: int
    """Tokens that they have to compute, at most: part of them may be in the prefix cache."""
    oldest_s: float
    """Seconds since the engine accepted the oldest of them."""


class LiveSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps after one that was asked for, and the engine's state now. Times are microseconds on the engine's clock."""

    now_us: int
    turns: list[StepTurn]
    steps: list[StepRecord]
    """At most `MAX_LIVE_STEPS`, the latest."""
    running: list[RunningTurn]
    queue: list[QueuedTurns]
    """The largest groups; see `MAX_GROUPS`."""
    times: StepTimes | None
    kv_blocks: int
    free_blocks: int
    """Blocks that nobody holds: those of the prefix cache included."""
    cached_blocks: int
    """Blocks that only the prefix cache holds."""


MAX_LIVE_STEPS = 200
MAX_GROUPS = 100
