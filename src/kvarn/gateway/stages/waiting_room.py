"""Where requests for one model wait for their admission: the policy, joined to the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect

from kvarn.config.schema import BLOCK_SIZE, KvarnConfig
from kvarn.gateway.admission.controller import AdmissionController, Refusal, Rules
from kvarn.gateway.admission.demand import Demand
from kvarn.gateway.admission.engine_view import EngineView
from kvarn.gateway.admission.predictor import EngineBounds
from kvarn.gateway.admission.traffic import Traffic
from kvarn.gateway.served import ServedModel
from kvarn.gateway.work import Outcome, Work
from kvarn.observe.admission import AdmissionMetrics

POLL_S = 0.01
"""How often waiting requests are looked at. What ends is noticed at once; this is for the prompts that an engine has
computed meanwhile, and for those that wait too long."""


class WaitingRoom:
    """The door of one model. Belongs to one event loop."""

    def __init__(self, config: KvarnConfig, model: ServedModel, metrics: AdmissionMetrics) -> None:
        settings, engine, card = config.admission, model.config.engine, model.replica.card
        rules = Rules(
            ttft_target_s=model.config.ttft_target_s or settings.ttft_target_s,
            tpot_target_s=model.config.tpot_target_s or settings.tpot_target_s,
            max_queue=settings.max_queue,
            max_queue_s=settings.max_queue_s,
        )
        view = EngineView(EngineBounds.of(engine, card.kv_blocks * BLOCK_SIZE if card is not None else 0))
        self._traffic = Traffic(engine.input_token_weight, engine.output_token_weight)
        self._controller = AdmissionController(rules, view, self._traffic, engine.priority_ageing_s)
        self._model = model
        self._metrics = metrics
        self._places: dict[Demand, asyncio.Future[Refusal | None]] = {}
        self._poller: asyncio.Task[None] | None = None

    def demand_of(self, work: Work) -> Demand:
        """What a piece of work would ask of this model's engine."""
        tenant = work.principal.organization_id
        return Demand(
            tenant=tenant,
            weight=work.principal.weight,
            priority=work.priority,
            prompt_tokens=self._traffic.expected_prompt(work.prompt_tokens),
            output_tokens=self._traffic.expected_output(tenant, work.max_output_tokens),
            sequences=work.sequences,
            received=work.received,
        )

    def would_be_late(self, demand: Demand) -> bool:
        """Whether a request that came now would be turned away."""
        self._controller.hear(self._model.stats, time.monotonic())
        return self._controller.would_refuse(demand, time.monotonic())

    async def enter(self, demand: Demand, client_left: Callable[[], Awaitable[None]] | None) -> Refusal | None:
        """Wait for admission; None once the request may go to the engine.

        Raises:
            ClientDisconnect: The client left meanwhile.
        """
        now = time.monotonic()
        self._controller.hear(self._model.stats, now)
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
            ttft_s=ttft_s,
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
            self._controller.ended(demand, time.monotonic(), **nothing, ttft_s=None, finished=False)

    async def _poll_while_some_wait(self) -> None:
        while self._places:
            await asyncio.sleep(POLL_S)
            self._poll()

    def _poll(self) -> None:
        now = time.monotonic()
        self._controller.hear(self._model.stats, now)
        for demand, refusal in self._controller.poll(now):
            place = self._places.pop(demand)
            if not place.done():
                place.set_result(refusal)
            if refusal is None:
                self._metrics.waited(self._model.name, demand.priority, now - demand.received)
        self._show_length()

    def _show_length(self) -> None:
        self._metrics.waiting(self._model.name, self._controller.queue.by_priority())


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
