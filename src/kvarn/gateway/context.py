"""What every route needs, made once and hung on the application."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from kvarn.config.schema import GatewayConfig
from kvarn.gateway.body import read_request
from kvarn.gateway.record import record_of
from kvarn.gateway.served import ModelTable, ReadyModel
from kvarn.observe.metrics import GatewayMetrics
from kvarn.wire.openai.errors import invalid_request

RequestT = TypeVar("RequestT", bound=BaseModel)
ResultT = TypeVar("ResultT")

_OPERATIONS = {"generate": "chat and text completions", "embed": "embeddings"}


@dataclass(frozen=True, slots=True)
class Gateway:
    """Limits, models and metrics of one gateway."""

    limits: GatewayConfig
    models: ModelTable
    metrics: GatewayMetrics

    async def read(self, request: Request, model: type[RequestT]) -> RequestT:
        """Read and validate the JSON body; see `read_request`."""
        return await read_request(request, model, self.limits.max_body_bytes, self.limits.body_timeout_s)

    async def run(self, request: Request, work: Callable[[], ResultT]) -> ResultT:
        """Run text work for a request: on the event loop where it is small, in the pool where it is large."""
        return await self.models.run(record_of(request.scope).body_bytes, work)

    def ready_model(self, request: Request, name: str, kind: Literal["generate", "embed"] | None = None) -> ReadyModel:
        """The model a request names, ready to work; `kind` is what it must be able to do.

        Raises:
            ApiError: 404 unknown, 400 of the wrong kind, 503 not ready yet.
        """
        model = self.models.find(name)
        record_of(request.scope).model = model.name
        ready = model.when_ready()
        if kind is not None and ready.card.kind != kind:
            does = _OPERATIONS.get(ready.card.kind, ready.card.kind)
            raise invalid_request(f"The model {name!r} does {does} only.", "model", "model_not_supported")
        return ready


def gateway_of(request: Request) -> Gateway:
    """The gateway that answers a request."""
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway
