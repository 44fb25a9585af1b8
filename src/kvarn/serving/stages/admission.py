"""Sends requests to their engine: at once, in their turn, or not at all."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping

from kvarn.admission.controller import Reason, Refusal
from kvarn.admission.demand import Demand
from kvarn.admission.process_delay import ProcessDelay
from kvarn.config.schema import KvarnConfig
from kvarn.identity.scopes import may_use_model
from kvarn.observe.admission import AdmissionMetrics
from kvarn.observe.metrics import UNKNOWN
from kvarn.serving.models import ServedModel
from kvarn.serving.pipeline import DegradedError, Work
from kvarn.serving.record import RequestRecord
from kvarn.serving.stages.early_fields import GENERATING, early_fields
from kvarn.serving.stages.waiting_room import WaitingRoom
from kvarn.wire.openai.errors import ApiError

CODE_BUSY = "server_busy"

_MESSAGES = {
    Reason.OVERLOADED: "The model {model!r} is overloaded: the answer would begin too late.",
    Reason.OVER_SHARE: "Your organisation has more than its share of {model!r} under way: the answer would begin late.",
    Reason.QUEUE_FULL: "Too many requests wait for {model!r}.",
    Reason.QUEUE_TIMEOUT: "The request waited too long for idle capacity of {model!r}.",
}


class AdmissionStage:
    """Asks the waiting room of the replica that a request is for.

    Args:
        config: The whole configuration.
        models: What is served, by name.
        metrics: Where decisions are counted.
    """

    def __init__(self, config: KvarnConfig, models: Mapping[str, ServedModel], metrics: AdmissionMetrics) -> None:
        self._config = config
        self._models = models
        self._metrics = metrics
        self._names = {alias: name for name, model in models.items() for alias in model.config.aliases}
        self._names |= {name: name for name in models}
        self._rooms: dict[str, WaitingRoom] = {}
        """By the replica's name."""
        self._shedding = frozenset(name for name, model in models.items() if config.sheds_load(model.config))
        targets = [config.slo_of(models[name].config).ttft_target_s for name in self._shedding]
        self._delay = ProcessDelay(max(targets, default=config.slo.ttft_target_s))

    def check_process(self, in_flight: int, began: float) -> None:
        """Refuse a request whose headers came at `began`, where this process cannot answer it.

        Raises:
            ApiError: 503; as many requests are being answered as may, or none would be answered in time.
        """
        most, now = self._config.gateway.max_requests, time.monotonic()
        self._delay.note(now - began, now)
        if in_flight > most:
            why = f"The server answers as many requests as it may (gateway.max_requests, {most})."
        elif len(self._shedding) == len(self._models) and self._delay.is_too_long(now - began):
            why = "The server is overloaded: the answer would begin too late."
        else:
            return
        self._metrics.shed(UNKNOWN, 0, CODE_BUSY)
        raise ApiError(503, f"{why} Try again.", type="server_error", code=CODE_BUSY, headers={"retry-after": "1"})

    def check_body(self, record: RequestRecord, body: bytes) -> None:
        """Refuse a request whose body has come, before it is parsed, where it would be answered too late.

        Raises:
            ApiError: As `enter` does.
        """
        if not self._shedding or record.endpoint not in GENERATING:
            return
        asked = early_fields(body)
        # What is answered in the background is nobody's first token, and is tried again.
        if asked is None or asked.background:
            return
        name = self._names.get(asked.model)
        if name is None or name not in self._shedding:
            return
        if not (self._models[name].ready and may_use_model(record.principal, name)):
            return
        record.replica = self._models[name].pick_replica()
        assert record.replica is not None  # the model is ready
        room = self._room(name, record.replica)
        record.early_demand = demand = room.early_demand(record, body, asked)
        refusal = room.accept(demand)
        if refusal is None:
            record.held.append(_Early(room, demand))
        elif self._models[name].config.fallback is None:
            record.model = name
            raise self._refused(room, demand, refusal, name, generates=True)

    async def enter(self, work: Work) -> AdmissionTicket | None:
        """Wait until the engine can take the work; what the gateway does by itself has none to wait for.

        Raises:
            DegradedError: It would be late, and a smaller model would answer in time.
            ApiError: 429 where its tenant has more than its share under way, else 503; both with Retry-After.
            ClientDisconnect: The client left while it waited.
        """
        if work.model not in self._models:
            return None
        room = self._room(work.model, work.replica)
        if work.early_demand is not None and work.early_demand.accepted and work.degraded_from is None:
            room.parsed(work.early_demand, work)
        demand = room.demand_of(work)
        refusal = await room.enter(demand, work.client_left)
        if refusal is None:
            self._metrics.decided(work.model, work.priority, "admitted")
            return AdmissionTicket(room, demand)
        # Lateness only: a batch's lines, which are never late, passed the gate of this model and of no other.
        other = self._fallback(work) if refusal.reason is Reason.OVERLOADED else None
        if other is not None:
            self._metrics.decided(work.model, work.priority, "degraded")
            raise DegradedError(other)
        raise self._refused(room, demand, refusal, work.model, generates=work.max_output_tokens > 0)

    async def close(self) -> None:
        """The server stops."""
        await asyncio.gather(*[room.close() for room in self._rooms.values()])

    def _refused(self, room: WaitingRoom, demand: Demand, refusal: Refusal, model: str, *, generates: bool) -> ApiError:
        self._metrics.shed(model, demand.priority, refusal.reason)
        if generates and demand.is_interactive:
            self._metrics.slo_missed(model)
        return _error(refusal, room.retry_after_s(demand, refusal), model)

    def _room(self, model: str, replica: str) -> WaitingRoom:
        room = self._rooms.get(replica)
        if room is None:
            room = self._rooms[replica] = WaitingRoom(self._config, self._models[model], replica, self._metrics)
        return room

    def _fallback(self, work: Work) -> str | None:
        """The first model down the ladder that is ready, open to the key, and would take the work."""
        if work.degraded_from is not None or not work.max_output_tokens:  # another model's vectors are no answer
            return None
        tried = {work.model}
        name = self._models[work.model].config.fallback
        while name is not None and name not in tried:
            tried.add(name)
            model = self._models[name]
            if model.ready and may_use_model(work.principal, name):
                rooms = [self._room(name, replica) for replica in model.ready_replicas]
                if any(not room.would_be_late(room.demand_of(work)) for room in rooms):
                    return name
            name = model.config.fallback
        return None


class _Early:
    """An accepted request that is not parsed yet."""

    def __init__(self, room: WaitingRoom, demand: Demand) -> None:
        self._room = room
        self._demand = demand

    def give_back(self) -> None:
        self._room.dropped(self._demand)


class AdmissionTicket:
    """A place in an engine."""

    def __init__(self, room: WaitingRoom, demand: Demand) -> None:
        self._room = room
        self._demand = demand

    async def leave(self, work: Work) -> None:
        """Give the place back, and learn from how it went."""
        self._room.leave(self._demand, work)


def _error(refusal: Refusal, retry_after_s: float, model: str) -> ApiError:
    over_share = refusal.reason is Reason.OVER_SHARE
    retry_s = max(1, math.ceil(retry_after_s))
    return ApiError(
        429 if over_share else 503,
        f"{_MESSAGES[refusal.reason].format(model=model)} Try again in {retry_s} s.",
        type="rate_limit_error" if over_share else "server_error",
        code=refusal.reason.value,
        headers={"retry-after": str(retry_s)},
    )
