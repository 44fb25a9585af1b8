"""Requests that wait to be admitted to one replica: the policy of `kvarn.admission`, joined to the event loop."""

from __future__ import annotations

import asyncio

from kvarn.admission.controller import Refusal
from kvarn.admission.demand import Demand
from kvarn.admission.engine_admission import POLL_S, EngineAdmission
from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import Outcome, Turn
from kvarn.catalog.client_left import ClientLeft, until_client_leaves
from kvarn.catalog.models import ServedModel
from kvarn.config.schema import KvarnConfig
from kvarn.observe.admission import AdmissionMetrics

MANY_TOKENS = 1 << 20  # more than any answer has


class ReplicaAdmission:
    """Admission to one replica of a model. Belongs to one event loop."""

    def __init__(self, config: KvarnConfig, model: ServedModel, replica: str, metrics: AdmissionMetrics) -> None:
        client = model.replicas[replica]
        self._admission = EngineAdmission(config, model.config, client.card)
        self.controller, self.slo = self._admission.controller, self._admission.slo
        self.model = model.name
        self._clock = model.clock
        self.name = replica
        self.client = client
        self._metrics = metrics
        self._waiting: dict[Demand, asyncio.Future[Refusal | None]] = {}
        self._poller: asyncio.Task[None] | None = None

    def update(self) -> float:
        """Give the controller the engine's latest statistics. Returns the time."""
        now = self._clock.now()
        self.controller.update(self.client.stats, now)
        return now

    def demand_of(self, turn: Turn) -> Demand:
        """The capacity of this engine that a turn would need."""
        choice, principal = turn.replica_choice, turn.record.principal
        return self._admission.demand(
            tenant=principal.organization_id,
            weight=principal.weight,
            priority=turn.priority,
            prompt_tokens=turn.prompt_tokens,
            cached_tokens=None if choice is None or choice.replica != self.name else choice.cached_tokens,
            max_output_tokens=turn.max_output_tokens,
            sequences=turn.sequences,
            arrival_s=turn.record.timeline.received_s,
        )

    def expected_demand(self, record: RequestRecord, prompt_tokens: int) -> Demand:
        """The capacity that a request that came now would need, by the length of its prompt alone."""
        principal = record.principal
        return self._admission.demand(
            tenant=principal.organization_id,
            weight=principal.weight,
            priority=principal.priority,
            prompt_tokens=prompt_tokens,
            max_output_tokens=MANY_TOKENS,
            arrival_s=self._clock.now(),
        )

    async def enter(self, demand: Demand, client_left: ClientLeft) -> Refusal | None:
        """Wait for admission; None once the request may go to the engine. Raises `ClientDisconnect`."""
        refusal = self.controller.offer(demand, self.update())
        if refusal is not None:
            return refusal
        decision: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self._waiting[demand] = decision
        self._poll()
        if decision.done():
            return decision.result()
        self._metrics.decided(self.model, demand.priority, "queued")
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll_while_some_wait())
        try:
            return await until_client_leaves(decision, client_left)
        except BaseException:
            if self._waiting.pop(demand, None) is not None:
                self.controller.withdraw(demand)
                self._poll()
            elif decision.result() is None:
                self.controller.ended(demand, self._clock.now(), prompt=0, cached=0, output=0, finished=False)
            raise

    def leave(self, demand: Demand, turn: Turn) -> None:
        usage = turn.usage
        ttft_s = None if usage.first_token is None else usage.first_token - turn.record.timeline.received_s
        if demand.predicted_ttft_s is not None and ttft_s is not None:
            self._metrics.first_token(self.model, demand.predicted_ttft_s, ttft_s)
        self.controller.ended(
            demand,
            self._clock.now(),
            prompt=usage.prompt_tokens,
            cached=usage.cached_tokens,
            output=usage.completion_tokens,
            finished=turn.outcome is Outcome.FINISHED,
        )
        if self._waiting:
            self._poll()

    async def close(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)

    async def _poll_while_some_wait(self) -> None:
        while self._waiting:
            await asyncio.sleep(POLL_S)
            self._poll()

    def _poll(self) -> None:
        now = self.update()
        for demand, refusal in self.controller.poll(now):
            decision = self._waiting.pop(demand)
            if not decision.done():
                decision.set_result(refusal)
            if refusal is None:
                self._metrics.waited(self.model, demand.priority, now - demand.arrival_s)
        self._metrics.waiting(self.model, self.name, self.controller.queue.by_priority())
