"""Loop of the ranks that follow rank 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

import msgspec

from kvarn.engine.plan import AdapterLoad
from kvarn.models.adapters import LoadedAdapter
from kvarn.worker.errors import PlanError
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.ranks.blocks import SlotMemory
from kvarn.worker.ranks.collectives import send_frame
from kvarn.worker.ranks.protocol import AddAdapter, ForgetAdapter, Message, RankProtocol, RunPlan

_messages = msgspec.msgpack.Decoder(Message)


class Follower:
    """Loop of a rank that is not rank 0. `load` reads an adapter, in a thread; `own` has the same `memory`, for its
    part of blocks beyond the cache; `answers`, to rank 0, gets an empty frame when blocks were moved."""

    def __init__(
        self,
        own: InProcessExecutor,
        load: Callable[[Path], LoadedAdapter],
        memory: SlotMemory | None,
        answers: IO[bytes],
    ) -> None:
        self._adapters = own.adapters
        self._rank = RankProtocol(own)
        self._memory = memory
        self._answers = answers
        self._load = load
        self._loads: dict[str, Future[LoadedAdapter]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="read-adapters")

    def run(self, frames: Iterator[bytes]) -> None:
        """Run the messages of rank 0 until there are no more. Raises PlanError where a plan contradicts this rank's
        state."""
        for frame in frames:
            match _messages.decode(frame):
                case AddAdapter(adapter, path):
                    self._loads[adapter] = self._thread.submit(self._load, Path(path))
                case ForgetAdapter(adapter):
                    self._loads.pop(adapter, None)
                    if self._adapters.has(adapter):
                        self._adapters.forget(adapter)
                case RunPlan(plan, slots, ahead, drawn):
                    if drawn:
                        self._rank.receive_tokens(drawn)
                    if self._memory is not None and slots is not None:
                        self._memory.slots = slots
                        self._rank.transfer_blocks(plan)
                        plan = msgspec.structs.replace(plan, kv_stores=[], kv_loads=[])
                        send_frame(self._answers, b"")
                    for load in plan.adapter_loads:
                        self._hold(load)
                    self._rank.run_follower(plan, ahead=ahead)
                    if plan.adapter_loads:  # sequences that use them come in later plans
                        self._adapters.finish_loads()

    def _hold(self, load: AdapterLoad) -> None:
        adapters = self._adapters
        if load.adapter in self._loads:
            found = self._loads.pop(load.adapter).result()
            if found.digest != load.adapter:
                raise PlanError(f"adapter {load.adapter} has changed on disk while it was loaded")
            adapters.add(load.adapter, found.packed)
        if adapters.num_blocks(load.adapter) != len(load.blocks):
            raise PlanError(f"adapter {load.adapter} takes another number of blocks here: lower tensor_parallel_size")
