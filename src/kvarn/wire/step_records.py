"""Records of an engine's steps: who was in each, what it gave them, how long it took.

An engine keeps those of the last hour (`kvarn.engine`). A turn is numbered within what is told: `turns[i]` is turn `i`.
"""

from __future__ import annotations

import msgspec

from kvarn.costs.step_times import StepTimes


class StepRow(msgspec.Struct, frozen=True, array_like=True):
    """Work of one sequence in a step."""

    turn: int
    computed_tokens: int
    """Known tokens and proposals that went through the model; 1 for a row that decodes."""
    output_tokens: int
    """Tokens drawn and kept; 0 for a chunk of a prompt that goes on."""


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
    """KV blocks that could be had when it was planned."""
    rows: list[StepRow]


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
    """Steps from when an engine accepted a turn to when it ended; times are microseconds since it was accepted."""

    turns: list[StepTurn]
    """The turn itself first."""
    steps: list[StepRecord]
    complete: bool
    """False: the first of them are forgotten, or there were too many to tell; the latest are here."""
    times: StepTimes | None
    """Learned step times; None: not yet measured."""
    kv_blocks: int
    """KV blocks of the engine."""
