"""The executor of a model that several processes hold together, its ranks.

Rank 0 is the engine's own process. It gives each plan to the others, runs its own part, and draws the tokens: it is of
the last stage (see `RankLayout`). All ranks have the same slots and block tables, and each has a KV cache of as many
blocks, with the part of each block that its layers and heads need. `RankProtocol` has their parts in a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from kvarn.engine.plan import StepPlan, StepResult
from kvarn.models.adapters import LoadedAdapter
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.ranks.blocks import BlockSlots, RankBlocks
from kvarn.worker.ranks.collectives import send_frame
from kvarn.worker.ranks.protocol import AddAdapter, DrawnTokens, ForgetAdapter, Message, RankProtocol, RunPlan

Result = TypeVar("Result")

_encoder = msgspec.msgpack.Encoder()


class RanksExecutor:
    """See `kvarn.engine.plan.Executor`. Plans are run in all ranks, one after the other.

    With several stages as many plans are in flight: while one stage computes a plan, the one before it computes the
    next. With one stage there are as many as rank 0's own executor takes. `load` reads rank 0's part of an adapter.
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
        """Plans that the other stages have, and this one not yet."""
        self._rank = RankProtocol(own)
        self._drawn: DrawnTokens = []  # tokens to send to the others with the next plan
        self._blocks = blocks
        self._load = load
        self._paths: dict[str, Path] = {}
        own.adapters.on_change = self._announce_adapter

    def submit(self, plan: StepPlan) -> None:
        """Send the plan to the other ranks, without masks: only this rank draws with them. With one stage, this rank
        begins. Raises RankLostError where one is gone, and as rank 0's own executor."""
        slots = None if self._blocks is None else self._blocks.begin(plan)
        ahead = self._rank.runs_ahead(plan)
        self._send(RunPlan(msgspec.structs.replace(plan, masks={}), slots, ahead, self._drawn))
        if self._stages > 1:
            self._plans.append((plan, slots))
            return
        self._run(self._own.submit, plan, slots)
        self._drawn = self._rank.drawn_tokens()

    def collect(self) -> StepResult:
        if self._stages == 1:
            return self._own.collect()
        return self._run(self._own.execute, *self._plans.popleft())

    def load_adapter(self, path: Path) -> LoadedAdapter:
        """Read an adapter; the other ranks read theirs from the same place when it is held. Raises as `load`."""
        loaded = self._load(path)
        self._paths[loaded.digest] = path
        return loaded

    def shutdown(self) -> None:
        self._own.shutdown()

    def _run(self, run: Callable[[StepPlan], Result], plan: StepPlan, slots: BlockSlots | None) -> Result:
        if self._blocks is None or slots is None:
            return run(plan)
        self._blocks.memory.slots = slots
        result = run(plan)
        self._blocks.end(plan, slots)
        return result

    def _announce_adapter(self, adapter: str, held: bool) -> None:
        self._send(AddAdapter(adapter, str(self._paths[adapter])) if held else ForgetAdapter(adapter))

    def _send(self, message: Message) -> None:
        frame = _encoder.encode(message)
        for other in self._others:
            send_frame(other, frame)
