"""The contract between scheduler and executor: `StepPlan` out, `StepResult` back, both plain data.

Whoever can turn one into the other is an `Executor`: a CPU, eight GPUs, or a simulator on a virtual clock.

A *slot* is a small integer that names a running sequence in the executor for as long as it runs. The executor keeps
per-slot state (block table, tokens seen for penalties, sampling parameters), so a plan only says what changed.

Rows and their results are made for each sequence in each step and cannot be part of a cycle: the garbage collector is
told to leave them alone.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from kvarn.wire.messages import PositionLogprobs
from kvarn.wire.sampling import SamplingParams


class NewSequence(msgspec.Struct, frozen=True):
    """A sequence enters a slot: new, forked from a sibling, or back after preemption."""

    slot: int
    sampling: SamplingParams
    seed: int
    """Seed of this choice, already derived from the request's."""
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    """Tokens drawn before a preemption; the next token drawn has output position `len(output_token_ids)`."""
    adapter: str = ""


class BlockUpdate(msgspec.Struct, frozen=True, array_like=True):
    """Entry `index` of a slot's block table becomes `block`. Appended, or replaced by copy-on-write."""

    index: int
    block: int


class Row(msgspec.Struct, frozen=True, gc=False):
    """The part of one sequence that is computed in this step."""

    slot: int
    start: int
    """Position of the first token computed: the sequence's `num_computed_tokens`."""
    token_ids: list[int]
    """Tokens to compute, at positions `start`, `start + 1`, ..."""
    block_updates: list[BlockUpdate]
    sample: bool
    """Draw a token after the last one (false for a prompt's chunks before its last)."""
    prompt_logprobs: bool = False
    """Report log-probabilities of the prompt tokens that follow each computed position."""


class BlockCopy(msgspec.Struct, frozen=True, array_like=True):
    """Copy the KV of a whole block, in every layer, before anything else in the step."""

    source: int
    target: int


class StepPlan(msgspec.Struct, frozen=True):
    """One step. Order of effects: releases, admissions, copies, then all rows as one batch."""

    step: int
    releases: list[int]
    admissions: list[NewSequence]
    copies: list[BlockCopy]
    rows: list[Row]

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(len(row.token_ids) for row in self.rows)


class RowResult(msgspec.Struct, frozen=True, gc=False):
    """What one row brought: in the order of the plan's rows."""

    slot: int
    token_ids: list[int]
    """Tokens drawn: none where `sample` was false."""
    logprobs: list[PositionLogprobs] | None = None
    prompt_logprobs: list[PositionLogprobs] | None = None
    """For prompt positions `start + 1 ... start + len(token_ids)` that exist."""


class StepResult(msgspec.Struct, frozen=True):
    """The outcome of a plan."""

    step: int
    rows: list[RowResult]
    elapsed_s: float
    """Seconds the executor took; feeds the step-time model."""


class Executor(Protocol):
    """Turns plans into results."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""
        ...

    @property
    def max_context_length(self) -> int:
        """Longest sequence, prompt and output together, in tokens."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step to its end."""
        ...

    def shutdown(self) -> None:
        """Free what the executor holds. Idempotent."""
        ...
