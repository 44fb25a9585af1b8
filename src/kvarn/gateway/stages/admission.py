"""Takes only what can be answered in time: the rest waits, is answered by a smaller model, or is turned away."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from kvarn.config.schema import KvarnConfig
from kvarn.gateway.admission.controller import Reason, Refusal
from kvarn.gateway.admission.demand import Demand
from kvarn.gateway.identity.scopes import may_use_model
from kvarn.gateway.served import ServedModel
from kvarn.gateway.stages.waiting_room import WaitingRoom
from kvarn.gateway.work import DegradedError, Work
from kvarn.observe.admission import AdmissionMetrics
from kvarn.wire.openai.errors import ApiError

_MESSAGES = {
    Reason.OVERLOADED: "The model {model!r} is overloaded: the answer would begin too late.",
    Reason.OVER_SHARE: "Your organisation has more than its share of {model!r} under way: the answer would begin late.",
    Reason.QUEUE_FULL: "Too many requests wait for {model!r}.",
    Reason.QUEUE_TIMEOUT: "The request waited too long for idle capacity of {model!r}.",
}


class AdmissionStage:
    """Asks the waiting room of the model that a request is for."""

    def __init__(self, config: KvarnConfig, models: Mapping[str, ServedModel], metrics: AdmissionMetrics) -> None:
        self._config = config
        self._models = models
        self._metrics = metrics
        self._rooms: dict[str, WaitingRoom] = {}

    async def enter(self, work: Work) -> AdmissionTicket | None:
        """Wait until the engine can take the work; what the gateway does by itself has none to wait for.

        Raises:
            DegradedError: It would be late, and a smaller model would answer in time.
            ApiError: 429 where its tenant has more than its share under way, else 503; both with Retry-After.
            ClientDisconnect: The client left while it waited.
        """
        if work.model not in self._models:
            return None
        room = self._room(work.model)
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
        self._metrics.shed(work.model, work.priority, refusal.reason)
        raise _error(refusal, work.model)

    async def close(self) -> None:
        """The server stops."""
        await asyncio.gather(*[room.close() for room in self._rooms.values()])

    def _room(self, name: str) -> WaitingRoom:
        room = self._rooms.get(name)
        if room is None:
            room = self._rooms[name] = WaitingRoom(self._config, self._models[name], self._metrics)
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
                room = self._room(name)
                if not room.would_be_late(room.demand_of(work)):
                    return name
            name = model.config.fallback
        return None


class AdmissionTicket:
    """A place in an engine."""

    def __init__(self, room: WaitingRoom, demand: Demand) -> None:
        self._room = room
        self._demand = demand

    async def leave(self, work: Work) -> None:
        """Give the place back, and learn from how it went."""
        self._room.leave(self._demand, work)


def _error(refusal: Refusal, model: str) -> ApiError:
    over_share = refusal.reason is Reason.OVER_SHARE
    retry_s = max(1, math.ceil(refusal.retry_after_s))
    return ApiError(
        429 if over_share else 503,
        f"{_MESSAGES[refusal.reason].format(model=model)} Try again in {retry_s} s.",
        type="rate_limit_error" if over_share else "server_error",
        code=refusal.reason.value,
        headers={"retry-after": str(retry_s)},
    )
