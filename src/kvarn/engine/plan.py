"""The contract between scheduler and executor: `StepPlan` out, `StepResult` back, both plain data.

An `Executor` turns one into the other: a CPU, eight GPUs, or a simulator on a virtual clock.

A *slot* is a small integer that names a running sequence in the executor for as long as it runs. The executor keeps
per-slot state (block table, tokens seen for penalties, sampling parameters, the token drawn last), so a plan only says
what changed.

Plans take effect one after the other, in the order in which they are submitted. So while one runs the next can be
planned as if it had ended: its blocks may be given to others, and of its tokens only the values are unknown.

Rows and their results are made for each sequence in each step and cannot be part of a cycle: the garbage collector is
told to leave them alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import msgspec

from kvarn.engine.errors import ProtocolError
from kvarn.engine.memory.block_inventory import BlockInventory
from kvarn.wire.messages import KVTierStats, PositionLogprobs
from kvarn.wire.sampling import SamplingParams

LAST_SAMPLED = -1
"""Stands among a row's tokens for the token that its slot drew last, which the engine does not know yet."""


class RowMasks(Protocol):
    """Which tokens may be drawn at the positions of one row; may be filled while the step runs."""

    def __getitem__(self, position: int, /) -> bytes | memoryview:
        """At the position after so many proposals: bit i (of byte i // 8, lowest first) says whether token i may be
        drawn. Whole words of 32 bits. Waits for it where it is not there yet."""


NO_SNAPSHOT = -1
"""Stands for a snapshot of a sequence's recurrent states where there is none: it begins without any tokens."""


class NewSequence(msgspec.Struct, frozen=True):
    """A sequence enters a slot: new, forked from a sibling, or back after preemption."""

    slot: int
    sampling: SamplingParams
    seed: int  # seed of this choice, already derived from the request's
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    """Tokens drawn before a preemption; the next token drawn has output position `len(output_token_ids)`."""
    adapter: str = ""
    """The adapter to compute it with, by its digest; empty for the model itself."""
    snapshot: int = NO_SNAPSHOT  # snapshot that the slot's recurrent states begin as, of a model that has such states


class BlockUpdate(msgspec.Struct, frozen=True, array_like=True):
    """Entry `index` of a slot's block table becomes `block`. Appended, or replaced by copy-on-write."""

    index: int
    block: int


class StateSave(msgspec.Struct, frozen=True, array_like=True):
    """The recurrent states of a row's sequence are copied once so many tokens of the row are computed."""

    num_tokens: int  # at least one
    snapshot: int


class Row(msgspec.Struct, frozen=True, gc=False):
    """The part of one sequence that is computed in this step."""

    slot: int
    start: int
    """Position of the first token computed: the sequence's `num_computed_tokens`."""
    token_ids: list[int]
    """Tokens to compute, at positions `start`, `start + 1`, ...; one may be `LAST_SAMPLED`."""
    block_updates: list[BlockUpdate]
    sample: bool
    """Draw a token after the last one (false for a prompt's chunks before its last)."""
    prompt_logprobs: bool = False
    """Report log-probabilities of the prompt tokens that follow each computed position."""
    num_proposals: int = 0
    """So many of the last `token_ids` are proposals. The token after each position from the one before them on is
    drawn, up to the first that is not the one proposed there."""
    num_forced: int = 0
    """So many of the first proposals are certain: they are drawn without computing their logits."""
    state_saves: list[StateSave] = []  # in ascending order


class BlockCopy(msgspec.Struct, frozen=True, array_like=True):
    """Copy the KV of a whole block, in every layer."""

    source: int
    target: int


class BlockTransfer(msgspec.Struct, frozen=True, array_like=True):
    """A block whose KV is stored beyond the device, or loaded from there, under the name of its contents."""

    block: int
    name: bytes
    tenant: str = ""  # owner of the block
    scope: bytes = b""


class AdapterLoad(msgspec.Struct, frozen=True, array_like=True):
    """An adapter that is written into blocks, beside this step and those that follow."""

    adapter: str
    blocks: list[int]


class StepPlan(msgspec.Struct, frozen=True):
    """One step. Order of effects: releases, dropped adapters, new sequences, stores, loads, copies, the beginning of
    adapters' loads, then all rows as one batch. Only one that transfers blocks or loads adapters may have no rows."""

    step: int
    releases: list[int]
    new_sequences: list[NewSequence]
    copies: list[BlockCopy]
    rows: list[Row]
    kv_stores: list[BlockTransfer] = []
    kv_loads: list[BlockTransfer] = []
    adapter_loads: list[AdapterLoad] = []
    adapter_drops: list[str] = []
    """Adapters whose blocks are others' from now on."""
    masks: dict[int, RowMasks] = {}
    """By slot, where only some tokens may be drawn: at each position at which the row draws one, its
    `num_proposals - num_forced + 1` last ones."""

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)


class RowResult(msgspec.Struct, frozen=True, gc=False):
    """Result of one row; results come in the order of the plan's rows."""

    slot: int
    token_ids: list[int]
    """Tokens drawn: none where `sample` was false, else the proposals that were right and one more."""
    logprobs: list[PositionLogprobs] | None = None
    prompt_logprobs: list[PositionLogprobs] | None = None
    """For prompt positions `start + 1 ... start + len(token_ids)` that exist."""


class StepResult(msgspec.Struct, frozen=True):
    step: int
    rows: list[RowResult]
    elapsed_s: float
    """Seconds the executor took, `transfer_s` included; feeds the step-time model."""
    transfer_s: float = 0.0  # seconds in which blocks were stored and loaded
    warming: bool = False
    """Something was done once for all such steps (kernels compiled, the step captured): `elapsed_s` is no example."""


class Executor(Protocol):
    """Turns plans into results, in the order of the plans."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def max_context_length(self) -> int:
        """Longest sequence, prompt and output together, in tokens."""

    @property
    def max_in_flight(self) -> int:
        """Plans that may have been submitted and not collected: 1, or 2 where it runs one while another is planned."""

    def submit(self, plan: StepPlan) -> None:
        """Take a plan to be run after those submitted before it."""

    def collect(self) -> StepResult:
        """The result of the oldest plan that was not collected; waits for it."""

    def shutdown(self) -> None:
        """Free what the executor holds. Idempotent."""


class SynchronousExecutor(ABC):
    """The part of an `Executor` that runs each plan to its end when it is submitted."""

    _last_result: StepResult | None = None

    @property
    def max_in_flight(self) -> int:
        return 1

    @abstractmethod
    def execute(self, plan: StepPlan) -> StepResult: ...

    def submit(self, plan: StepPlan) -> None:
        self._last_result = self.execute(plan)

    def collect(self) -> StepResult:
        result, self._last_result = self._last_result, None
        if result is None:
            raise ProtocolError("no plan was submitted: there is no result to collect")
        return result


BlockContents = Sequence[memoryview]
"""The memory of a block, in parts: bytes of all layers' keys, then of all values."""


class KVFetch(Protocol):
    """Blocks on their way into the connector's memory. They stay there until it is released."""

    def is_done(self) -> bool:
        """Whether nothing more will come: all are there, or one could not be read."""

    def release(self) -> None:
        """End the wait. Idempotent."""


class KVConnector(Protocol):
    """Keeps the KV of blocks beyond the device: in memory, from which a step loads them, and further away.

    The engine asks and the executor stores and loads, in one thread. Nothing here waits for a file or another process.
    """

    def holds(self, name: bytes) -> bool:
        """Whether a block of this name is kept anywhere, so that it need not be stored again."""

    def is_loadable(self, name: bytes) -> bool:
        """Whether a block of this name is in memory: the plan that is made now can load it."""

    def fetch(self, names: Sequence[bytes], tenant: str, scope: bytes) -> KVFetch | None:
        """Begin to bring these blocks into memory; None where it has no room for them now."""

    def fetch_s(self, num_blocks: int) -> float:
        """Seconds in which so many blocks would come, as far as was measured."""

    def reserve(self, name: bytes) -> bool:
        """Keep a block until it is loaded, which the next plan does; False where it is not in memory any more."""

    def store(self, transfers: Sequence[BlockTransfer], contents: Sequence[BlockContents]) -> None:
        """Copy the contents of blocks, for as long as there is room."""

    def load(self, transfers: Sequence[BlockTransfer], contents: Sequence[BlockContents]) -> None:
        """Copy what reserved blocks hold into the memory of these."""

    def forget(self, tenant: str) -> None:
        """Delete a tenant's blocks, and keep none of it any more."""

    def report_to(self, held: BlockInventory | None) -> None: ...

    def stats(self) -> dict[str, KVTierStats]:
        """Gauges and totals of each tier, by its name."""

    def close(self) -> None:
        """Write what waits, for a moment, and end. Idempotent."""
