"""The service of a decoder: an `EngineCore` as the loop sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from kvarn.config.schema import EngineConfig
from kvarn.costs.decoder import DecoderCosts
from kvarn.engine.core import EngineCore
from kvarn.engine.errors import AdmissionError
from kvarn.engine.plan import Executor
from kvarn.engine.step_time import StepTimeModel
from kvarn.wire.messages import Embed, EngineStats, ModelCard, RefusalReason, Refused, StepOutput, Submit

_GAUGES_EVERY_S = 0.25
"""Gauges that change with each step are sent this often: whoever shows them looks once a second."""


class GenerateService:
    """Generates text's tokens."""

    def __init__(
        self,
        executor: Executor,
        config: EngineConfig,
        card: ModelCard,
        *,
        namespace: str = "",
        costs: DecoderCosts | None = None,
        step_time: StepTimeModel | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`namespace` names the model in hashes of cached blocks; `costs` turn steps into bytes and operations.

        `step_time` predicts the duration of steps before the first one.
        """
        self.card = card
        self._costs = costs
        self._executor = executor
        self._core = EngineCore(executor, config, clock, namespace=namespace, step_time=step_time)
        self._clock = clock
        self._gauges_due_s = clock()

    def accept(self, request: Submit | Embed) -> Refused | None:
        """Queue a request, or say why not."""
        if isinstance(request, Embed):
            return _invalid(request, "this model generates text: it has no embeddings")
        problem = _find_problem(request, self.card)
        if problem is not None:
            return _invalid(request, problem)
        try:
            self._core.add(request)
        except AdmissionError as error:
            return Refused(
                request_id=request.request_id,
                reason=error.reason,
                message=str(error),
                retry_after_s=error.retry_after_s,
            )
        return None

    def abort(self, request_id: str) -> None:
        """Forget a request; its blocks are free when this returns."""
        self._core.abort(request_id)

    def start_draining(self) -> None:
        """Refuse every later request."""
        self._core.start_draining()

    def has_work(self) -> bool:
        """Whether a request is here."""
        return self._core.has_work()

    def step(self) -> Sequence[Refused | StepOutput]:
        """One step: what was given up, then all deltas in one message."""
        output = self._core.step()
        if not output.computed and not output.refused:
            return []
        return [*output.refused, StepOutput(deltas=output.deltas, stats=self._due_stats())]

    def stats(self) -> EngineStats:
        """Gauges and totals after the latest step."""
        stats = self._core.stats()
        return stats if self._costs is None else _with_work(stats, self._costs)

    def shutdown(self) -> None:
        """Free the executor."""
        self._executor.shutdown()

    def _due_stats(self) -> EngineStats | None:
        """The gauges, with the first step after a rest, the last before one, and at an interval between."""
        now, idle = self._clock(), not self._core.has_work()
        if now < self._gauges_due_s and not idle:
            return None
        self._gauges_due_s = now if idle else now + _GAUGES_EVERY_S
        return self.stats()


def _with_work(stats: EngineStats, costs: DecoderCosts) -> EngineStats:
    """The same with the work of all steps, each taken for one of average size (which matters for experts alone)."""
    tokens = stats.prompt_tokens_total + stats.output_tokens_total
    step = costs.step(tokens=max(1, round(tokens / max(1, stats.step))), logits_rows=1, kv_tokens=0, pairs=0)
    work = costs.step(
        tokens=tokens,
        logits_rows=stats.output_tokens_total,
        kv_tokens=stats.kv_tokens_read_total,
        pairs=stats.attended_pairs_total,
    )
    return msgspec.structs.replace(
        stats,
        read_bytes_total=int(stats.step * step.weight_bytes + work.kv_bytes),
        operations_total=int(work.operations),
    )


def _invalid(request: Submit | Embed, message: str) -> Refused:
    return Refused(request_id=request.request_id, reason=RefusalReason.INVALID, message=message)


def _find_problem(request: Submit, card: ModelCard) -> str | None:
    """What makes a request impossible for this model: one must not end the engine for the others of its batch. What
    holds for every model the gateway has checked."""
    if request.adapter and request.adapter not in card.adapters:
        return f"adapter {request.adapter!r} is not loaded: this engine has {card.adapters or 'none'}"
    if not card.has_tokens(request.prompt_token_ids):
        return f"prompt_token_ids must be in 0 to {card.vocab_size - 1}"
    allowed = request.sampling.allowed_token_ids
    if allowed is not None and not any(0 <= token < card.vocab_size for token in allowed):
        return f"allowed_token_ids must name at least one token in 0 to {card.vocab_size - 1}"
    return None
