"""Where requests for one replica wait for their admission: the policy, joined to the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect

from kvarn.admission.controller import AdmissionController, Refusal, Rules
from kvarn.admission.demand import Demand
from kvarn.admission.engine_view import EngineView
from kvarn.admission.predictor import EngineBounds
from kvarn.admission.traffic import Traffic
from kvarn.config.schema import BLOCK_SIZE, KvarnConfig
from kvarn.observe.admission import AdmissionMetrics
from kvarn.serving.models import ServedModel
from kvarn.serving.pipeline import Outcome, Work
from kvarn.serving.record import RequestRecord
from kvarn.serving.stages.early_fields import EarlyFields
from kvarn.serving.tiers import priority_of

POLL_S = 0.01
"""How often waiting requests are looked at. What ends is noticed at once; this is for the prompts that an engine has
computed meanwhile, and for those that wait too long."""

MANY_TOKENS = 1 << 20
"""More than any answer has."""


class WaitingRoom:
    """Requests for one replica of a model. Belongs to one event loop."""

    def __init__(self, config: KvarnConfig, model: ServedModel, replica: str, metrics: AdmissionMetrics) -> None:
        """`replica` is its name."""
        client = model.replicas[replica]
        slo, engine, card = config.slo_of(model.config), model.config.engine, client.card
        rules = Rules(
            ttft_target_s=slo.ttft_target_s,
            tpot_target_s=slo.tpot_target_s,
            load_shedding=config.sheds_load(model.config),
            max_queue=config.admission.max_queue,
            max_queue_s=config.admission.max_queue_s,
        )
        view = EngineView(EngineBounds.of(engine, card.kv_blocks * BLOCK_SIZE if card is not None else 0))
        self._traffic = Traffic(engine.input_token_weight, engine.output_token_weight)
        self._controller = AdmissionController(rules, view, self._traffic, engine.priority_ageing_s)
        self._model = model
        self._replica = replica
        self._client = client
        self._metrics = metrics
        self._places: dict[Demand, asyncio.Future[Refusal | None]] = {}
        self._poller: asyncio.Task[None] | None = None

    def demand_of(self, work: Work) -> Demand:
        """What a piece of work would ask of this model's engine."""
        tenant, early = work.principal.organization_id, work.early_demand
        return Demand(
            tenant=tenant,
            weight=work.principal.weight,
            priority=work.priority,
            prompt_tokens=self._traffic.expected_prompt(work.prompt_tokens),
            output_tokens=self._traffic.expected_output(tenant, work.max_output_tokens),
            sequences=work.sequences,
            received=work.received,
            key=early.key if early is not None else None,
            accepted=early is not None and early.accepted,
            promised=early is not None and early.promised,
        )

    def early_demand(self, record: RequestRecord, body: bytes, asked: EarlyFields) -> Demand:
        """The same of a request that is not parsed yet, as far as can be told."""
        principal = record.principal
        tenant = principal.organization_id
        sequences = max(1, asked.n or 1)
        return Demand(
            tenant=tenant,
            weight=principal.weight,
            priority=priority_of(asked.service_tier, asked.priority or 0, principal.priority),
            prompt_tokens=self._traffic.expected_prompt(self._traffic.tokens_in(len(body))),
            output_tokens=self._traffic.expected_output(tenant, sequences * (asked.most_output or MANY_TOKENS)),
            sequences=sequences,
            received=record.received,
            key=(tenant, hash(body)),
            body_bytes=0 if asked.has_context_elsewhere else len(body),
        )

    def accept(self, demand: Demand) -> Refusal | None:
        """Decide on a request before it is parsed; one that is not refused is `parsed` or `dropped`."""
        now = self._hear()
        return self._controller.accept(demand, now)

    def parsed(self, early: Demand, work: Work) -> None:
        """An accepted request is tokenized."""
        self._controller.dropped(early)
        if early.body_bytes:
            self._traffic.learn_body(early.body_bytes, work.prompt_tokens)

    def dropped(self, early: Demand) -> None:
        """An accepted request is over."""
        self._controller.dropped(early)

    def would_be_late(self, demand: Demand) -> bool:
        """Whether a request that came now would be refused."""
        now = self._hear()
        return self._controller.would_refuse(demand, now)

    def retry_after_s(self, demand: Demand, refusal: Refusal) -> float:
        """When a refused request shall come again."""
        return self._controller.retry_after_s(demand, refusal, time.monotonic())

    async def enter(self, demand: Demand, client_left: Callable[[], Awaitable[None]] | None) -> Refusal | None:
        """Wait for admission; None once the request may go to the engine.

        Raises:
            ClientDisconnect: The client left meanwhile.
        """
        now = self._hear()
        refusal = self._controller.offer(demand, now)
        if refusal is not None:
            return refusal
        place: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self._places[demand] = place
        self._poll()
        if place.done():
            return place.result()
        self._metrics.decided(self._model.name, demand.priority, "queued")
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll_while_some_wait())
        try:
            return await _first(place, client_left)
        except BaseException:
            self._leave_early(demand, place)
            raise

    def leave(self, demand: Demand, work: Work) -> None:
        """A request that was admitted is over."""
        tally = work.tally
        ttft_s = None if tally.first_token is None else tally.first_token - work.received
        if demand.predicted_ttft_s is not None and ttft_s is not None:
            self._metrics.first_token(self._model.name, demand.predicted_ttft_s, ttft_s)
        self._controller.ended(
            demand,
            time.monotonic(),
            prompt=tally.prompt_tokens,
            cached=tally.cached_tokens,
            output=tally.completion_tokens,
            finished=work.outcome is Outcome.FINISHED,
        )
        if self._places:
            self._poll()

    async def close(self) -> None:
        """Stop looking; those that wait are cancelled by whoever brought them."""
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)

    def _leave_early(self, demand: Demand, place: asyncio.Future[Refusal | None]) -> None:
        if self._places.pop(demand, None) is not None:
            self._controller.withdraw(demand)
            self._show_length()
        elif place.done() and not place.cancelled() and place.result() is None:
            nothing = {"prompt": 0, "cached": 0, "output": 0}
            self._controller.ended(demand, time.monotonic(), **nothing, finished=False)

    async def _poll_while_some_wait(self) -> None:
        while self._places:
            await asyncio.sleep(POLL_S)
            self._poll()

    def _poll(self) -> None:
        now = self._hear()
        for demand, refusal in self._controller.poll(now):
            place = self._places.pop(demand)
            if not place.done():
                place.set_result(refusal)
            if refusal is None:
                self._metrics.waited(self._model.name, demand.priority, now - demand.received)
        self._show_length()

    def _hear(self) -> float:
        now = time.monotonic()
        self._controller.hear(self._client.stats, now)
        return now

    def _show_length(self) -> None:
        self._metrics.waiting(self._model.name, self._replica, self._controller.queue.by_priority())


async def _first(
    place: asyncio.Future[Refusal | None], client_left: Callable[[], Awaitable[None]] | None
) -> Refusal | None:
    """The verdict, unless the client leaves first."""
    if client_left is None:
        return await asyncio.shield(place)  # cancelling who waits must not hide the verdict from `_leave_early`
    gone: asyncio.Future[None] = asyncio.ensure_future(client_left())
    either: set[asyncio.Future[Any]] = {place, gone}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not place.done():
            raise ClientDisconnect
        return place.result()
    finally:
        gone.cancel()
