"""The service of a decoder: an `EngineCore` as the loop sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from kvarn.clock import SYSTEM_CLOCK
from kvarn.costs.decoder import DecoderCosts
from kvarn.costs.draws import Draws
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.engine.errors import AdmissionError
from kvarn.engine.fast_forward import DecodeRun, decode_run
from kvarn.engine.memory.block_inventory import BlockPlace
from kvarn.engine.step_reports import FloorOf
from kvarn.replica.server.engine_answers import EngineAnswers
from kvarn.replica.server.prefill.client import PrefillClient
from kvarn.replica.server.prefill.server import PrefillServer
from kvarn.wire.block_names import NamedPrompt
from kvarn.wire.messages import (
    AdapterChanged,
    Adapters,
    Embed,
    EngineStats,
    Join,
    LoadAdapter,
    ModelCard,
    RefusalReason,
    Refused,
    StepOutput,
    Submit,
    UnloadAdapter,
)
from kvarn.wire.questions import Question
from kvarn.wire.sessions import SessionNews

if TYPE_CHECKING:  # these bring torch
    from kvarn.replica.server.adapters import AdapterHost
    from kvarn.replica.server.experts import ExpertLoads
    from kvarn.replica.server.sleep import SleepingModel

MakeCore = Callable[[EngineParts, Callable[[], float]], EngineCore]
GAUGES_EVERY_S = 0.25
"""Interval of the gauges that change with each step; they are shown once a second."""


class GenerateService:
    """Generates tokens of text.

    Args:
        costs: Bytes and operations of a step, for the gauges.
        adapter_host: Makes what loads and unloads adapters; None: there are none.
        prefill_client: Connection to the engine that computes prompts for this one.
        prefill_server: Sends prompts' blocks to another engine.
        closing: Called at shutdown, after the executor's.
        floor_of: The least seconds that the device needs for a step.
        sleep: Takes the model off its device once this service is shut down; None: it cannot sleep.
        make_core: Makes the engine of its parts and clock: a recording one, perhaps.
        gauges_every_s: Interval of the statistics while it works.
    """

    def __init__(
        self,
        parts: EngineParts,
        card: ModelCard,
        *,
        costs: DecoderCosts | None = None,
        adapter_host: Callable[[EngineCore], AdapterHost] | None = None,
        prefill_client: PrefillClient | None = None,
        prefill_server: PrefillServer | None = None,
        experts: ExpertLoads | None = None,
        closing: Sequence[Callable[[], None]] = (),
        floor_of: FloorOf = lambda shape: 0.0,
        sleep: Callable[[], SleepingModel] | None = None,
        clock: Callable[[], float] = SYSTEM_CLOCK.now,
        make_core: MakeCore = EngineCore,
        gauges_every_s: float = GAUGES_EVERY_S,
    ) -> None:
        self.gauges_every_s = gauges_every_s
        self.sleep = sleep
        self.card = msgspec.structs.replace(card, cache_namespace=parts.namespace)
        self.parts = parts
        self._costs = costs
        self._prefill_client = prefill_client
        self._prefill_server = prefill_server
        self._experts = experts
        self._closing = closing
        self._core = make_core(parts, clock)
        self._adapters = None if adapter_host is None else adapter_host(self._core)
        self._clock = clock
        self._answers = EngineAnswers(self._core, floor_of, self._adapter_name, clock)
        self.gauges_due_s = clock()

    @property
    def block_places(self) -> list[BlockPlace]:
        connector = self.parts.connector
        return [self._core.cache] if connector is None else [self._core.cache, connector]

    def accept(self, request: Submit | Embed, came_s: float | None = None) -> Refused | None:
        """Take a request. `came_s`: when it came, if it has waited here for its adapter to be read."""
        if isinstance(request, Embed):
            return _invalid(request, "this model generates text: it has no embeddings")
        problem = _find_problem(request, self.card, has_grammars=self.parts.masks is not None)
        if problem is not None:
            return _invalid(request, problem)
        if not request.adapter:
            return self._add(request)
        if self._adapters is None:
            return _invalid(request, f"adapter {request.adapter[:200]!r} is not loaded: this engine has none")
        came_s = self._clock() if came_s is None else came_s
        found = self._adapters.resolve(request, came_s)
        if isinstance(found, str):
            return _invalid(request, found)
        return None if found is None else self._add(found, came_s)

    def _add(self, request: Submit, came_s: float | None = None) -> Refused | None:
        try:
            self._core.add(request, came_s)
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
        if self._adapters is not None:
            self._adapters.abort(request_id)

    def answer(self, question: Question) -> bytes:
        return self._answers.answer(question)

    def _adapter_name(self, digest: str) -> str:
        names = [] if self._adapters is None else self._adapters.names_of([digest])
        return names[0] if names else digest

    def change_adapters(self, message: LoadAdapter | UnloadAdapter) -> Refused | None:
        if self._adapters is None:
            return _invalid(message, "this engine has no adapters")
        self._adapters.change(message)
        return None

    def join(self, message: Join) -> Adapters | None:
        return None if self._adapters is None else self._adapters.join(message)

    def take_session_news(self, news: SessionNews) -> None:
        self._core.take_session_news(news)

    def forget_tenant(self, tenant: str) -> None:
        self._core.forget_tenant(tenant)
        if self._prefill_client is not None:
            self._prefill_client.forget(tenant)

    def start_draining(self) -> None:
        self._core.start_draining()

    def has_work(self) -> bool:
        return self._core.has_work() or (self._adapters is not None and self._adapters.is_busy)

    def step(self) -> Sequence[Refused | StepOutput | AdapterChanged | Adapters]:
        """Run one step: changes of adapters, refusals, then all deltas in one message. Where nothing was computed, the
        gauges alone are told at their interval, and when work has ended: an engine with work is never silent, and is
        known to rest."""
        worked, told = self.has_work(), self._poll_adapters()
        output = self._core.step()
        if self._prefill_server is not None:
            self._prefill_server.after_step(self._core, output.deltas)
        is_due = worked and (not self.has_work() or self._clock() >= self.gauges_due_s)
        if not output.computed and not output.refused and not is_due:
            return told
        return [*told, *output.refused, StepOutput(deltas=output.deltas, stats=self.due_stats())]

    def decode_run(self, overheads: Draws | None = None) -> DecodeRun | None:
        """The next steps as far as they only decode (`kvarn.engine.fast_forward`)."""
        if self._adapters is not None or self._prefill_server is not None:
            return None
        return decode_run(self._core, overheads)

    def _poll_adapters(self) -> list[Refused | StepOutput | AdapterChanged | Adapters]:
        """Changes of adapters: the list of adapters comes before the answer to the request for the change."""
        if self._adapters is None or not self._adapters.is_busy:
            return []
        answers, ready, told = self._adapters.poll()
        refused = [refusal for request, came_s in ready if (refusal := self.accept(request, came_s)) is not None]
        return [*([] if told is None else [told]), *answers, *refused]

    def stats(self) -> EngineStats:
        return self._complete(self._core.stats())

    def _complete(self, stats: EngineStats) -> EngineStats:
        used = stats.adapters
        if self._adapters is not None and (used.running or used.waiting):
            named = self._adapters.names_of
            used = msgspec.structs.replace(used, running=named(used.running), waiting=named(used.waiting))
            stats = msgspec.structs.replace(stats, adapters=used)
        if self._prefill_client is not None:
            tiers = stats.kv_tiers | {"prefill": self._prefill_client.stats()}
            stats = msgspec.structs.replace(stats, kv_tiers=tiers)
        if self._experts is not None:
            stats = self._experts.enter(stats)
        stats = msgspec.structs.replace(stats, every_s=self.gauges_every_s)
        return stats if self._costs is None else _with_work(stats, self._costs)

    def shutdown(self) -> None:
        if self._adapters is not None:
            self._adapters.close()
        self.parts.executor.shutdown()
        for close in self._closing:
            close()

    def due_stats(self) -> EngineStats | None:
        """The gauges, with the first step after a rest, the last before one, and at an interval between."""
        now, idle = self._clock(), not self.has_work()
        if now < self.gauges_due_s and not idle:
            return None
        self.gauges_due_s = now if idle else now + self.gauges_every_s
        return self.stats()

    def due_stats_ahead(self, run: DecodeRun, end: int) -> EngineStats | None:
        """The gauges, due with a run's step of this number (from 1 on), which is not taken; None where it must be."""
        stats = run.stats_at(end)
        if stats is None:
            return None
        self.gauges_due_s = run.steps.ends_s[end - 1] + self.gauges_every_s
        return self._complete(stats)


def _with_work(stats: EngineStats, costs: DecoderCosts) -> EngineStats:
    """Add the work of all steps, each counted as one of average size (which matters for experts alone)."""
    tokens = stats.prompt_tokens_total + stats.output_tokens_total
    step = costs.step(tokens=max(1, round(tokens / max(1, stats.step))), logits_rows=1, kv_tokens=0, pairs=0)
    work = costs.step(
        tokens=tokens,
        logits_rows=stats.output_tokens_total,
        kv_tokens=stats.work.kv_tokens_read_total,
        pairs=stats.work.attended_pairs_total,
    )
    totals = msgspec.structs.replace(
        stats.work,
        read_bytes_total=int(stats.step * step.weight_bytes + work.kv_bytes),
        operations_total=int(work.operations),
    )
    return msgspec.structs.replace(stats, work=totals)


def _invalid(request: Submit | Embed | LoadAdapter | UnloadAdapter, message: str) -> Refused:
    return Refused(request_id=request.request_id, reason=RefusalReason.INVALID, message=message)


def _find_problem(request: Submit, card: ModelCard, *, has_grammars: bool) -> str | None:
    """Reason why this model cannot run a request, which would end the engine for its whole batch. The gateway has
    checked what holds for every model."""
    if request.grammar is not None and not has_grammars:
        return "this engine keeps answers to no grammar"
    if not all(card.has_tokens(drawn or ()) for drawn in request.resume_token_ids):
        return f"resume_token_ids must be in 0 to {card.vocab_size - 1}"
    if not isinstance(request.prompt_token_ids, NamedPrompt) and not card.has_tokens(request.prompt_token_ids):
        return f"prompt_token_ids must be in 0 to {card.vocab_size - 1}"
    allowed = request.sampling.allowed_token_ids
    if allowed is not None and not any(0 <= token < card.vocab_size for token in allowed):
        return f"allowed_token_ids must name at least one token in 0 to {card.vocab_size - 1}"
    return None
