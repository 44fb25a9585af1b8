"""The executor of a model that several processes hold together, its ranks, and what the others of them run.

Rank 0 is the engine's own process. It gives each plan to the others, runs its own part, and draws the tokens: it is of
the last stage (see `RankLayout`). All ranks have the same slots and block tables, and each has a KV cache of as many
blocks, with the part of each block that its layers and heads need.

On devices that compute beside the host (`AsyncExecutor`) ranks of one stage run ahead: each has all logits and
draws the same tokens from them, so none waits to be told. Rank 0 says which plans are run like that. What it draws by
itself, with masks for example, it sends along with the next plan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from kvarn.engine.plan import AdapterLoad, StepPlan, StepResult
from kvarn.models.adapters import LoadedAdapter
from kvarn.worker.errors import PlanError
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.ranks.blocks import BlockSlots, RankBlocks, SlotMemory
from kvarn.worker.ranks.pipes import send_frame

Result = TypeVar("Result")

_encoder = msgspec.msgpack.Encoder()


class AddAdapter(msgspec.Struct, frozen=True, tag=True):
    """Plans may load an adapter from now on: read it from this directory."""

    adapter: str
    path: str


class ForgetAdapter(msgspec.Struct, frozen=True, tag=True):
    """No plan will load it any more."""

    adapter: str


class RunPlan(msgspec.Struct, frozen=True, tag=True):
    """Run a step."""

    plan: StepPlan
    slots: BlockSlots | None = None
    """Where its blocks are stored and loaded; None where it moves none."""
    ahead: bool = False
    """Every rank draws its tokens."""
    drawn: list[tuple[int, list[int]]] = []
    """Slots and tokens that rank 0 drew in the step before."""


_messages = msgspec.msgpack.Decoder(AddAdapter | ForgetAdapter | RunPlan)


class RanksExecutor:
    """See `kvarn.engine.plan.Executor`. Plans are run in all ranks, one after the other.

    With several stages as many plans are in flight: while one stage computes a plan, the one before it computes the
    next. With one stage there are as many as rank 0's own executor takes.

    Args:
        own: Rank 0's part of the model, with its KV cache.
        others: Pipes to the other ranks.
        stages: Into which the layers are divided.
        load: Reads rank 0's part of an adapter.
        blocks: Keeps blocks beyond the caches, where that is configured.
    """

    def __init__(
        self,
        own: InProcessExecutor,
        others: Sequence[IO[bytes]],
        stages: int,
        load: Callable[[Path], LoadedAdapter],
        blocks: RankBlocks | None = None,
    ) -> None:
        self.num_blocks = own.num_blocks
        self.max_context_length = own.max_context_length
        self.max_in_flight = own.max_in_flight if stages == 1 else stages
        self._stages = stages
        self._own = own
        self._others = others
        self._plans: deque[tuple[StepPlan, BlockSlots | None]] = deque()
        """That the other stages have, and this one not yet."""
        self._drawn: list[tuple[int, list[int]]] = []
        """What to tell the others with the next plan."""
        self._blocks = blocks
        self._load = load
        self._paths: dict[str, Path] = {}
        own.adapters.on_change = self._tell_of_adapter

    def submit(self, plan: StepPlan) -> None:
        """Send the plan to the other ranks, without its masks: only this rank draws with them. Where there is one
        stage, this rank begins, too.

        Raises RankLostError where one is gone, and as rank 0's own executor.
        """
        slots = None if self._blocks is None else self._blocks.begin(plan)
        ahead = self._own.runs_ahead(plan)
        self._tell(RunPlan(msgspec.structs.replace(plan, masks={}), slots, ahead, self._drawn))
        if self._stages > 1:
            self._plans.append((plan, slots))
            return
        self._run(self._own.submit, plan, slots)
        self._drawn = self._own.drawn_here()

    def collect(self) -> StepResult:
        """This rank's result of the oldest plan. Raises as `InProcessExecutor.execute`, and RankLostError."""
        if self._stages == 1:
            return self._own.collect()
        return self._run(self._own.execute, *self._plans.popleft())

    def load_adapter(self, path: Path) -> LoadedAdapter:
        """Read an adapter; the other ranks read theirs from the same place when it is held. Raises as `load`."""
        loaded = self._load(path)
        self._paths[loaded.digest] = path
        return loaded

    def shutdown(self) -> None:
        """Free what this rank holds. The others end when their pipes are closed."""
        self._own.shutdown()

    def _run(self, run: Callable[[StepPlan], Result], plan: StepPlan, slots: BlockSlots | None) -> Result:
        """This rank's part of a plan, and what is to be done with the blocks that all ranks moved."""
        if self._blocks is None or slots is None:
            return run(plan)
        self._blocks.memory.slots = slots
        result = run(plan)
        self._blocks.end(plan, slots)
        return result

    def _tell_of_adapter(self, adapter: str, held: bool) -> None:
        self._tell(AddAdapter(adapter, str(self._paths[adapter])) if held else ForgetAdapter(adapter))

    def _tell(self, message: AddAdapter | ForgetAdapter | RunPlan) -> None:
        frame = _encoder.encode(message)
        for other in self._others:
            send_frame(other, frame)


class Follower:
    """What a rank does that draws no tokens.

    Args:
        own: Its part of the model, with its KV cache.
        load: Reads an adapter for it; called in a thread.
        memory: Where its part of blocks is kept beyond the cache; `own` has the same.
        answers: Rank 0 is told here when blocks were moved.
    """

    def __init__(
        self,
        own: InProcessExecutor,
        load: Callable[[Path], LoadedAdapter],
        memory: SlotMemory | None,
        answers: IO[bytes],
    ) -> None:
        self._own = own
        self._memory = memory
        self._answers = answers
        self._load = load
        self._loads: dict[str, Future[LoadedAdapter]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="read-adapters")

    def follow(self, frames: Iterator[bytes]) -> None:
        """Do what rank 0 says, to its last word.

        Raises:
            PlanError: A plan contradicts the state of this rank.
            Exception: What computing a step, or reading an adapter, raises.
        """
        for frame in frames:
            match _messages.decode(frame):
                case AddAdapter(adapter, path):
                    self._loads[adapter] = self._thread.submit(self._load, Path(path))
                case ForgetAdapter(adapter):
                    self._loads.pop(adapter, None)
                    if self._own.adapters.has(adapter):
                        self._own.adapters.forget(adapter)
                case RunPlan(plan, slots, ahead, drawn):
                    if drawn:
                        self._own.learn(drawn)
                    if self._memory is not None and slots is not None:
                        self._memory.slots = slots
                        self._own.transfer_blocks(plan)
                        plan = msgspec.structs.replace(plan, kv_stores=[], kv_loads=[])
                        send_frame(self._answers, b"")
                    for load in plan.adapter_loads:
                        self._hold(load)
                    self._own.follow(plan, ahead=ahead)
                    if plan.adapter_loads:  # sequences that use them come in later plans
                        self._own.adapters.finish_loads()

    def _hold(self, load: AdapterLoad) -> None:
        adapters = self._own.adapters
        if load.adapter in self._loads:
            found = self._loads.pop(load.adapter).result()
            if found.digest != load.adapter:
                raise PlanError(f"adapter {load.adapter} has changed on disk while it was loaded")
            adapters.add(load.adapter, found.packed)
        if adapters.num_blocks(load.adapter) != len(load.blocks):
            raise PlanError(f"adapter {load.adapter} takes another number of blocks here: lower tensor_parallel_size")
