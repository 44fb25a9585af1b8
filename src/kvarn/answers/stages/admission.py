"""Sends requests to their engine: at once, in their turn, or not at all."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Mapping

from kvarn.admission.controller import Reason, Refusal
from kvarn.admission.demand import Demand
from kvarn.answers.model_routes import BYTES_PER_TOKEN
from kvarn.answers.record import RequestRecord
from kvarn.answers.stages.replica_admission import ReplicaAdmission
from kvarn.answers.turn import DegradedError, Turn
from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.models import ServedModel
from kvarn.config.schema import KvarnConfig
from kvarn.observe.admission import AdmissionMetrics
from kvarn.observe.metrics import UNKNOWN
from kvarn.routing.model_choice import RequestFeatures
from kvarn.routing.router import choose_admitted
from kvarn.wire.openai.errors import ApiError

CODE_BUSY = "server_busy"
_INTERACTIVE = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat", "/api/generate"})
"""Paths whose requests a client waits for. A response may be made in the background: only its body says so."""

_MESSAGES = {
    Reason.OVERLOADED: "The model {model!r} is overloaded: the answer would begin too late.",
    Reason.OVER_SHARE: "Your organization has more than its share of {model!r} under way: the answer would begin late.",
    Reason.QUEUE_FULL: "Too many requests wait for {model!r}.",
    Reason.QUEUE_TIMEOUT: "The request waited too long for idle capacity of {model!r}.",
}


class AdmissionStage:
    """Admits requests to replicas."""

    name = "admission"

    def __init__(self, config: KvarnConfig, models: Mapping[str, ServedModel], metrics: AdmissionMetrics) -> None:
        self._config = config
        self._models = models
        self._table = ModelTable(models)
        self._metrics = metrics
        self._replicas: dict[str, ReplicaAdmission] = {}
        """By the replica's name. Another replica may get the name of one that is gone."""

    def check_process(self, in_flight: int) -> None:
        """Refuse a request (`ApiError`, 503) where this process answers as many as it may."""
        limit = self._config.gateway.max_requests
        if in_flight > limit:
            self._metrics.shed(UNKNOWN, 0, CODE_BUSY)
            why = f"The server answers as many requests as it may (gateway.max_requests, {limit}). Try again."
            raise ApiError(503, why, type="server_error", code=CODE_BUSY, headers={"retry-after": "1"})

    def check_length(self, record: RequestRecord, body_bytes: int) -> None:
        """Refuse a request whose body is not read yet where no model could answer it in time, by the body's length: a
        refusal must cost next to nothing under overload. Which model it names, and in which tier, is not known.

        Raises:
            ApiError: 429 or 503, as `enter` does.
        """
        if record.endpoint not in _INTERACTIVE or not any(self._config.sheds_load(each.config) for each in self._table):
            return
        late: list[tuple[str, ReplicaAdmission, Demand, Refusal]] = []
        for model in self._table:
            if (card := model.card) is not None and card.kind != "generate":
                continue
            replicas = [replica for version in model.all_versions for replica in self._ready_replicas(version)]
            if not (replicas and self._config.sheds_load(model.config)):
                return  # its requests wait for a replica, or are not refused for being late
            for replica in replicas:
                demand = replica.expected_demand(record, body_bytes // BYTES_PER_TOKEN)
                refusal = replica.controller.lateness(demand, replica.update())
                if refusal is None:
                    return
                late.append((model.name, replica, demand, refusal))
        if late:
            _, replica, demand, refusal = min(late, key=lambda each: each[3].retry_after_s)
            replica.controller.queue.refuse(demand, demand.arrival_s)
            record.choice.name = late[0][0]  # it may have named any
            raise self._refused(demand, refusal, record.choice.name, generates=True)

    async def enter(self, turn: Turn) -> None:
        """Wait until the engine can take the work; turns of built-in models do not wait. Raises `DegradedError`: it
        would be late, and a smaller model would answer in time; `ApiError`: 429 where its tenant has more than its
        share under way, else 503; `ClientDisconnect`."""
        if turn.model not in self._models:
            return
        replica = self._replica_for(turn)
        demand = replica.demand_of(turn)
        turn.slo = replica.slo if demand.is_interactive else None
        refusal = await replica.enter(demand, turn.record.reply.client_left)
        if refusal is None:
            self._metrics.decided(turn.model, turn.priority, "admitted")
            turn.closing.callback(replica.leave, demand, turn)
            return
        # Lateness only: a batch's lines, which are never late, are answered by the model they ask for.
        fallback = self._fallback(turn) if refusal.reason is Reason.OVERLOADED else None
        if fallback is not None:
            self._metrics.decided(turn.model, turn.priority, "degraded")
            raise DegradedError(fallback)
        raise self._refused(demand, refusal, turn.model, generates=turn.max_output_tokens > 0)

    async def close(self) -> None:
        await asyncio.gather(*[replica.close() for replica in self._replicas.values()])

    def _refused(self, demand: Demand, refusal: Refusal, model: str, *, generates: bool) -> ApiError:
        self._metrics.shed(model, demand.priority, refusal.reason)
        if generates and demand.is_interactive:
            self._metrics.slo_missed(model)
        over_share = refusal.reason is Reason.OVER_SHARE
        retry_s = max(1, math.ceil(refusal.retry_after_s))
        return ApiError(
            429 if over_share else 503,
            f"{_MESSAGES[refusal.reason].format(model=model)} Try again in {retry_s} s.",
            type="rate_limit_error" if over_share else "server_error",
            code=refusal.reason.value,
            headers={"retry-after": str(retry_s)},
        )

    def _replica_for(self, turn: Turn) -> ReplicaAdmission:
        """The replica that was chosen for the work or, where that would refuse it, the next best that would not."""
        model = self._models[turn.model].version_of(turn.replica)
        replicas, first, route = model.replicas, turn.replica_choice, turn.route_request
        if turn.replica not in replicas:  # it has gone since it was chosen
            again = None if route is None else replicas.choose_or_draining(route)
            if again is None:
                raise model.not_ready()
            turn.go_to(again)
            first = again
        chosen = self._replica(turn.model, turn.replica)
        if len(replicas) < 2 or first is None or route is None:
            return chosen
        best = choose_admitted(
            first,
            lambda refusing: replicas.choose(dataclasses.replace(route, refusing=refusing)),
            lambda choice: _would_refuse(self._replica(turn.model, choice.replica), turn),
        )
        if best is first:
            return chosen
        turn.go_to(best)
        return self._replica(turn.model, best.replica)

    def _replica(self, model: str, replica: str) -> ReplicaAdmission:
        served, found = self._models[model].version_of(replica), self._replicas.get(replica)
        if found is None or found.client is not served.replicas[replica]:
            self._forget_gone()
            found = self._replicas[replica] = ReplicaAdmission(self._config, served, replica, self._metrics)
        return found

    def _forget_gone(self) -> None:
        """Forget replicas that are served no more, such as those of a version that was replaced."""
        served = {name for model in self._table for version in model.all_versions for name in version.replicas}
        for name in [name for name in self._replicas if name not in served]:
            self._metrics.gone(self._replicas.pop(name).model, name)

    def _ready_replicas(self, model: ServedModel) -> list[ReplicaAdmission]:
        return [self._replica(model.name, name) for name in model.replicas.ready] if model.ready else []

    def predicted_ttft_s(self, name: str, record: RequestRecord, features: RequestFeatures) -> float | None:
        """Seconds to the first token that the quickest replica of a model would take for a request; None: unknown."""
        model = self._table.named(name)
        predicted = [
            each.controller.predicted_ttft_s(each.expected_demand(record, features.prompt_tokens), each.update())
            for each in ([] if model is None else self._ready_replicas(model))
        ]
        return min([seconds for seconds in predicted if seconds is not None], default=None)

    def _fallback(self, turn: Turn) -> str | None:
        """The first fallback that is ready and would take the turn."""
        # Another model's vectors are no answer, and another model has not the adapter.
        if not turn.max_output_tokens or (turn.adapter and turn.record.choice.route is None):
            return None
        return next((name for name in turn.record.choice.overload_fallbacks if self._would_take(name, turn)), None)

    def _would_take(self, name: str, turn: Turn) -> bool:
        model = self._table.named(name) or self._table.named(name.partition(":")[0])
        if model is None:
            return False
        return any(not _would_refuse(each, turn) for each in self._ready_replicas(model))


def _would_refuse(replica: ReplicaAdmission, turn: Turn) -> bool:
    return replica.controller.would_refuse(replica.demand_of(turn), replica.update())
