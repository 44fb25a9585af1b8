"""The executor that runs the model in the engine's own process."""

from __future__ import annotations

import time

from kvarn.engine.plan import KVConnector, StepPlan, StepResult, SynchronousExecutor
from kvarn.models import Decoder
from kvarn.worker.errors import ContextTooLongError, ExecutorClosedError
from kvarn.worker.runner import ModelRunner


class InProcessExecutor(SynchronousExecutor):
    """One model on one device, driven by plans (`kvarn.engine.plan.Executor`)."""

    def __init__(
        self,
        model: Decoder,
        *,
        num_blocks: int,
        max_num_seqs: int,
        max_context_length: int | None = None,
        connector: KVConnector | None = None,
    ) -> None:
        """Allocate the KV cache and the slots.

        Args:
            model: The loaded decoder.
            num_blocks: Blocks of the KV cache; see `plan_kv_blocks`.
            max_num_seqs: Slots: plans name them 0 to `max_num_seqs - 1`.
            max_context_length: Tokens of the longest sequence; default: the model's own limit.
            connector: Where plans store KV blocks beyond the cache; the engine must have the same.

        Raises:
            ContextTooLongError: `max_context_length` is more than the model was trained for.
        """
        limit = model.spec.max_context_length
        if max_context_length is not None and max_context_length > limit:
            raise ContextTooLongError(
                f"max_context_length is {max_context_length}, but the model was trained for {limit} tokens: lower it"
            )
        self._max_context_length = limit if max_context_length is None else max_context_length
        self._num_blocks = num_blocks
        self._runner: ModelRunner | None = ModelRunner(
            model,
            num_blocks=num_blocks,
            max_num_seqs=max_num_seqs,
            max_context_length=self._max_context_length,
            connector=connector,
        )

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""
        return self._num_blocks

    @property
    def max_context_length(self) -> int:
        """Longest sequence, prompt and output together, in tokens."""
        return self._max_context_length

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step to its end. Raises what `ModelRunner.run` raises, and `ExecutorClosedError`."""
        if self._runner is None:
            raise ExecutorClosedError("the executor is shut down: make a new one to run further plans")
        started = time.perf_counter()
        rows = self._runner.run(plan)
        return StepResult(plan.step, rows, time.perf_counter() - started)

    def shutdown(self) -> None:
        """Free the model and its KV cache. Idempotent."""
        self._runner = None
