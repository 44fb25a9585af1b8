"""Blocks beyond the device: which of them a waiting sequence begins with, and when they are brought near.

A block is loaded only where that is expected to take less time than computing its tokens: bytes over the measured
bandwidth against the step-time model. Blocks further away than the connector's memory are fetched while the sequence
waits. It waits for them as long as computing them would take, and no longer: then what has come is loaded, and the rest
is computed. So a tier that has become slow costs at most as much again as having none.
"""

from __future__ import annotations

from itertools import takewhile

from kvarn.costs.step_times import pairs
from kvarn.engine.memory.remote_prefill import RemotePrefill
from kvarn.engine.plan import BlockTransfer, KVConnector, KVFetch, StepResult
from kvarn.engine.request import Sequence
from kvarn.engine.step_time import StepTimeModel
from kvarn.shapes import BLOCK_SIZE
from kvarn.wire.block_names import PrefixScope, block_hashes, chain_hash, root_hash

_SMOOTHING = 0.1
_LONG_S = 1.0
"""Longest wait for a fetch before the time of computing is known."""
_ASK_AGAIN_S = 0.02
"""After so long a fetch that had no room is tried again."""


class KVTiers:
    """The engine's side of a `KVConnector`: decisions and counts."""

    def __init__(
        self,
        connector: KVConnector,
        namespace: str,
        step_time: StepTimeModel,
        remote_prefill: RemotePrefill | None = None,
    ) -> None:
        self.connector = connector
        self.queries = 0
        """Tokens of prompts that were looked for here, since the prefix cache did not hold them."""
        self.hits = 0  # tokens loaded, of `queries`
        self.given_up = 0  # fetches that took too long
        self.remote_prefill = remote_prefill  # asks another engine to compute prompts, where there is one
        self._namespace = namespace
        self._step_time = step_time
        self.transfer_s = 0.0
        """Seconds that storing or loading one block holds a step up; 0 before it was measured."""
        self._stores: list[BlockTransfer] = []
        self._loads: list[BlockTransfer] = []

    def fetch(self, names: list[bytes], scope: PrefixScope) -> KVFetch | None:
        """Begin to bring these blocks into memory; None where there is no room."""
        return self.connector.fetch(names, scope.tenant, root_hash(scope, self._namespace))

    # What waits -------------------------------------------------------------------------------------------------------

    def name(self, sequence: Sequence, limit: int) -> None:
        """Name the full blocks of the first `limit` tokens, unless the sequence has names from its preemption."""
        if not sequence.fetch.block_names and limit >= BLOCK_SIZE:
            sequence.fetch.block_names = self._names(sequence, limit // BLOCK_SIZE * BLOCK_SIZE)

    def _names(self, sequence: Sequence, num_tokens: int) -> list[bytes]:
        """Names of the blocks of its first tokens; the last may not be full."""
        request = sequence.request
        if request.block_names is None:
            return block_hashes(sequence.tokens[:num_tokens], request.scope, self._namespace)
        names, rest = request.block_names[: num_tokens // BLOCK_SIZE], num_tokens % BLOCK_SIZE
        if rest:
            names.append(chain_hash(names[-1] if names else b"", [rest]))
        return names

    def loadable(self, sequence: Sequence, first: int, end: int) -> list[bytes]:
        """Names of the blocks from entry `first` on, before entry `end`, that the next plan shall load."""
        names = list(takewhile(self.connector.is_loadable, sequence.fetch.block_names[first:end]))
        return names if self._gain_s(first, len(names), 0) >= 0 else []

    def begin_fetch(self, sequence: Sequence, first: int, end: int, now: float) -> None:
        names = list(takewhile(self.connector.holds, sequence.fetch.block_names[first:end]))
        far = sum(1 for name in names if not self.connector.is_loadable(name))
        near = next((i for i, name in enumerate(names) if not self.connector.is_loadable(name)), len(names))
        sequence.fetch.tried = True
        scope = root_hash(sequence.request.scope, self._namespace)
        if not far and self.remote_prefill is not None and self.remote_prefill.ask(sequence, first + near, scope):
            sequence.request.turn.fetch_begun(len(sequence.fetch.block_names) - first - near, now)
            return
        if not far or self._gain_s(first, len(names), far) <= max(0.0, self._gain_s(first, near, 0)):
            return
        fetch = sequence.fetch
        fetch.pending = self.connector.fetch(names, sequence.request.scope.tenant, scope)
        fetch.tried, fetch.again_s = fetch.pending is not None, now + _ASK_AGAIN_S
        if fetch.tried:
            sequence.request.turn.fetch_begun(len(names), now)
        is_known = self._step_time.is_settled
        fetch.timeout_s = self._recompute_s(first + near, len(names) - near) if is_known else _LONG_S

    def must_wait(self, sequence: Sequence, now: float) -> bool:
        """Whether blocks are on their way, or wait for room, that are worth waiting for by one that could start now."""
        fetch = sequence.fetch
        if fetch.tried if fetch.pending is None else fetch.pending.is_done():
            return False
        if fetch.until_s is None:
            fetch.until_s = now + fetch.timeout_s
        if now < fetch.until_s:
            return True
        self.given_up += fetch.timeout_s > 0
        fetch.tried = True
        self.end_fetch(sequence)
        return False

    def end_fetch(self, sequence: Sequence) -> None:
        pending, sequence.fetch.pending = sequence.fetch.pending, None
        if pending is not None:
            pending.release()

    # What the next plan does ------------------------------------------------------------------------------------------

    @property
    def has_transfers(self) -> bool:
        return bool(self._stores or self._loads)

    def store(self, block: int, name: bytes, scope: PrefixScope) -> None:
        """Have a block stored before anything else is written into it, unless it is kept already."""
        if not self.connector.holds(name):
            self._stores.append(BlockTransfer(block, name, scope.tenant, root_hash(scope, self._namespace)))

    def load(self, block: int, name: bytes) -> None:
        self._loads.append(BlockTransfer(block, name))

    def suspend(self, sequence: Sequence, computed: int) -> list[bytes]:
        """Have the blocks of a preempted sequence stored, the last perhaps not full, if that pays twice; returns
        their names."""
        scope = sequence.request.scope
        names = self._names(sequence, computed)
        if self._gain_s(0, len(names), 0) >= self.transfer_s * len(names):
            for block, name in zip(sequence.blocks, names, strict=False):
                self.store(block, name, scope)
        return names

    def drain(self) -> tuple[list[BlockTransfer], list[BlockTransfer]]:
        stores, self._stores = self._stores, []
        loads, self._loads = self._loads, []
        return stores, loads

    def observe(self, num_transfers: int, result: StepResult) -> None:
        if num_transfers:
            seconds = result.transfer_s / num_transfers
            self.transfer_s += (seconds - self.transfer_s) * (_SMOOTHING if self.transfer_s else 1.0)

    # What pays --------------------------------------------------------------------------------------------------------

    def _gain_s(self, first: int, count: int, far: int) -> float:
        """Seconds saved by loading `count` blocks from entry `first` on, of which so many are far away."""
        if not count:
            return 0.0
        if not self._step_time.is_settled:
            return float(count)  # nothing is known: reading is rarely slower than computing
        costs = self.transfer_s * count + (self.connector.fetch_s(far) if far else 0.0)
        return self._recompute_s(first, count) - costs

    def _recompute_s(self, first: int, count: int) -> float:
        """Seconds that computing these blocks adds to steps that are made anyway."""
        if not count:
            return 0.0
        tokens = count * BLOCK_SIZE
        return self._step_time.times.prompt_s(tokens, pairs(first * BLOCK_SIZE, tokens))
