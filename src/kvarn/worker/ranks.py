"""The executor of a model that several processes hold together, its ranks, and what the others of them run.

Rank 0 is the engine's own process. It gives each plan to the others, runs its own part, and draws the tokens: it is of
the last stage (see `RankLayout`). All ranks have the same slots and block tables, and each has a KV cache of as many
blocks, with the part of each block that its layers and heads need.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import IO

import msgspec

from kvarn.engine.plan import StepPlan, StepResult
from kvarn.worker.collectives import RankLostError
from kvarn.worker.executor import InProcessExecutor

_LENGTH = struct.Struct("<Q")
_encoder = msgspec.msgpack.Encoder()
_plans = msgspec.msgpack.Decoder(StepPlan)


class RanksExecutor:
    """See `kvarn.engine.plan.Executor`. Plans are run in all ranks, one after the other.

    With several stages as many plans are in flight: while one stage computes a plan, the one before it computes the
    next.

    Args:
        own: Rank 0's part of the model, with its KV cache.
        others: Pipes to the other ranks.
        stages: Into which the layers are divided.
    """

    def __init__(self, own: InProcessExecutor, others: Sequence[IO[bytes]], stages: int) -> None:
        self.num_blocks = own.num_blocks
        self.max_context_length = own.max_context_length
        self.max_in_flight = stages
        self._own = own
        self._others = others
        self._plans: deque[StepPlan] = deque()

    def submit(self, plan: StepPlan) -> None:
        """Send the plan to the other ranks. Their masks are not needed there: only this rank draws.

        Raises RankLostError where one is gone.
        """
        message = _encoder.encode(msgspec.structs.replace(plan, masks={}))
        for other in self._others:
            send_frame(other, message)
        self._plans.append(plan)

    def collect(self) -> StepResult:
        """Run this rank's part of the oldest plan. Raises as `InProcessExecutor.execute`, and RankLostError."""
        return self._own.execute(self._plans.popleft())

    def shutdown(self) -> None:
        """Free what this rank holds. The others end when their pipes are closed."""
        self._own.shutdown()


def follow(own: InProcessExecutor, messages: Iterator[bytes]) -> None:
    """Run the plans that rank 0 sends, to the last."""
    for message in messages:
        own.follow(_plans.decode(message))


def send_frame(pipe: IO[bytes], message: bytes) -> None:
    """Write a message with its length. Raises RankLostError where nobody reads any more."""
    try:
        pipe.write(_LENGTH.pack(len(message)) + message)
        pipe.flush()
    except (BrokenPipeError, ValueError) as error:
        raise RankLostError("another rank of this model has ended") from error


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """The next message; None where the pipe was closed."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    message = pipe.read(length)
    return message if len(message) == length else None
