"""Whether another engine computes a prompt: decided for each request, by the step-time model.

Beside running decodes a prompt is cut into chunks that keep their latency, and still each stretches their steps; and
behind other prompts it waits. Where another engine of the same model is expected to be done no later, it computes the
prompt, and its blocks are loaded here as if they came from a tier. An idle engine computes its prompt itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from kvarn.config.disaggregation import DisaggregationConfig
from kvarn.config.engine import EngineConfig
from kvarn.costs.prefill_speed import PrefillSpeed
from kvarn.costs.step_times import pairs
from kvarn.engine.plan import KVFetch
from kvarn.engine.request import Sequence
from kvarn.engine.step_time import StepTimeModel
from kvarn.engine.waiting_queue import WaitingQueue
from kvarn.shapes import BLOCK_SIZE

_SPARE_S = 0.5  # added to what a prompt is expected to take elsewhere, before it is given up


@dataclass(frozen=True, slots=True)
class PeerLoad:
    """Work that another engine has, and its speed."""

    waiting_tokens: int  # tokens of prompts that it was asked for and has not sent
    token_s: float
    """Seconds for each token, the transfer included; 0 before it was measured."""


class PrefillPeer(Protocol):
    """Another engine of the same model, which computes prompts and sends their blocks."""

    def load(self) -> PeerLoad | None:
        """Its load; None where it cannot be reached."""

    def prefill(self, sequence: Sequence, names: list[bytes], scope: bytes) -> KVFetch | None:
        """Have a prompt computed up to the last of these blocks, and them sent; None where that is not possible."""


@dataclass(slots=True)
class RemotePrefill:
    """Asks the peer where that pays."""

    peer: PrefillPeer
    config: EngineConfig
    step_time: StepTimeModel
    """This engine's; the peer's too, until that was measured."""
    work: Callable[[], tuple[Collection[Sequence], WaitingQueue]]
    """Sequences that run and those that wait, also those for which the peer was asked."""
    chosen: DisaggregationConfig
    asked: int = 0

    def ask(self, sequence: Sequence, first: int, scope: bytes) -> bool:
        """Have the peer compute a new prompt's blocks from entry `first` on, where that pays: it is its fetch."""
        names = sequence.fetch.block_names[first:]
        start, count = first * BLOCK_SIZE, len(names) * BLOCK_SIZE
        adapter = sequence.request.scope.adapter  # the peer has none
        if adapter or count < self.chosen.min_tokens or sequence.num_computed_tokens:
            return False
        load = self.peer.load()
        if load is None:
            return False
        running, queue = self.work()
        waiting = sum(queue.tokens_by_priority().values()) - sequence.num_tokens - load.waiting_tokens
        local_s, is_busy = self._local_s(running, start, count, max(0, waiting))
        times = self.step_time.times
        token_s = load.token_s or (times.fixed_s + times.prompt_s(count, pairs(start, count))) / count
        remote_s = (load.waiting_tokens + sequence.num_prompt - start) * token_s
        if self.chosen.mode == "auto" and not (is_busy and remote_s <= local_s):
            return False
        fetch = sequence.fetch
        fetch.pending = self.peer.prefill(sequence, names, scope)
        fetch.timeout_s = 2 * max(local_s, remote_s) + _SPARE_S
        self.asked += fetch.pending is not None
        return fetch.pending is not None

    def _local_s(self, running: Collection[Sequence], start: int, count: int, waiting: int) -> tuple[float, bool]:
        """Seconds until this engine had computed `count` tokens behind `waiting` others; whether it has anything
        else to do."""
        contexts = []
        for sequence in running:
            uncomputed = sequence.num_tokens - sequence.num_computed_tokens
            if uncomputed == 1:
                contexts.append(sequence.num_tokens)
            else:
                waiting += max(0, uncomputed)
        times, tokens = self.step_time.times, count + waiting
        work_s = times.prompt_s(count, pairs(start, count)) * tokens / count
        decode_s = times.decode_s(len(contexts), sum(contexts))
        speed = PrefillSpeed.beside(decode_s, len(contexts), work_s / tokens, self.config)
        return speed.seconds(tokens, work_s), waiting > 0 or bool(contexts)
