"""`/console/api/what-if`: what the latest requests of a model would have met with other settings.

For administrators of the platform: it tells of all tenants' traffic at once, and takes a processor for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal

from fastapi import Depends, Request
from msgspec import Struct
from pydantic import Field
from starlette.responses import Response

from kvarn.catalog.models import ServedModel
from kvarn.costs.replica_model import Distribution, ReplicaModel
from kvarn.costs.step_times import StepTimes
from kvarn.gateway.console.router import console_router
from kvarn.gateway.console.streams import console_stream
from kvarn.gateway.console.time_range import RangeQuery
from kvarn.gateway.console.viewer import ConsoleViewer
from kvarn.gateway.dependencies import GatewayDep, current_platform_admin
from kvarn.gateway.state import Gateway
from kvarn.gateway.what_if import MAX_REQUESTS, Window
from kvarn.planner.devices import device_table
from kvarn.store.repositories.usage.recent import LedgerRequest, requests_of_model
from kvarn.text.json_file import read_json
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.sse import named_event
from kvarn.wire.what_if import Changes, Progress, RecordedRequest, Simulated, WhatIf

router = console_router()
ADMINISTRATORS = [Depends(current_platform_admin)]

_SECTIONS = ("slo", "admission")
"""Sections of the configuration that decide, besides the model's, what becomes of its requests."""


class SimulatedModel(Struct, frozen=True, kw_only=True):
    """A model that can be simulated, and how it is served now."""

    name: str
    replicas: int
    token_budget: int
    max_num_seqs: int
    kv_cache_dtype: str
    quantization: str
    """Empty: as the checkpoint has them."""
    measured: bool
    """Whether its engines know how long their steps take."""


class WhatIfChoices(Struct, frozen=True, kw_only=True):
    models: list[SimulatedModel]
    devices: list[str]
    max_requests: int


class WhatIfQuery(RangeQuery):
    until: int | None = Field(None, ge=0, le=1 << 40, description="End of the range, UNIX seconds. Default: now.")
    replicas: int | None = Field(None, ge=1, le=256)
    whole_prompts: bool = False
    kv_cache_dtype: Literal["float32", "bfloat16", "int8", "fp8"] | None = None
    quantization: Literal["int8", "fp8", "int4"] | None = None
    device: str | None = Field(None, min_length=1, max_length=64)
    token_budget: int | None = Field(None, ge=16, le=1 << 20)
    max_num_seqs: int | None = Field(None, ge=1, le=4096)

    @property
    def changes(self) -> Changes:
        return Changes(**{name: getattr(self, name) for name in Changes.__struct_fields__})


@router.get("/what-if", dependencies=ADMINISTRATORS)
async def get_choices(gateway: GatewayDep) -> WhatIfChoices:
    """The models that can be simulated, and what can be changed."""
    return WhatIfChoices(
        models=[_choice(each) for each in gateway.models if _generates(each)],
        devices=list(device_table().devices),
        max_requests=MAX_REQUESTS,
    )


@router.get("/what-if/run", dependencies=ADMINISTRATORS)
async def simulate(request: Request, gateway: GatewayDep, viewer: ConsoleViewer, query: WhatIfQuery) -> Response:
    """Events `window`, `progress` and, in the end, `simulated` or `failed`. Who stops listening ends the simulation.

    Raises:
        ApiError: 400, there is nothing to simulate; 404, no such model.
    """
    if query.model is None:
        raise invalid_request("Missing 'model': name a model that is served here.", "model")
    model = viewer.find_model(gateway.models, query.model)
    question = query.model_copy(update={"until": query.until or int(gateway.store.now()), "model": model.name})
    kept = gateway.control.what_if.find(_key(question))
    if kept is not None:
        return console_stream(request, _again(*kept))
    window, asked = await _ask(gateway, model, question)
    return console_stream(request, _events(gateway, viewer.principal.organization_id, question, window, asked))


def _key(question: WhatIfQuery) -> str:
    return question.model_dump_json()


async def _again(window: Window, answer: Simulated) -> AsyncGenerator[bytes, None]:
    yield named_event("window", window)
    yield named_event("simulated", answer)


async def _events(
    gateway: Gateway, tenant: str, question: WhatIfQuery, window: Window, asked: WhatIf
) -> AsyncGenerator[bytes, None]:
    yield named_event("window", window)
    try:
        async with aclosing(gateway.control.what_if.run(tenant, _key(question), window, asked)) as run:
            async for news in run:
                yield named_event("progress" if isinstance(news, Progress) else "simulated", news)
    except ApiError as error:
        yield named_event("failed", {"message": error.message, "code": error.code})


async def _ask(gateway: Gateway, model: ServedModel, question: WhatIfQuery) -> tuple[Window, WhatIf]:
    """The requests of the range, and what is to be simulated of them. Raises `ApiError` 400."""
    assert question.until is not None
    end, card = question.until, model.card
    start, replica = end - int(question.seconds), _replica(model)
    rows = await requests_of_model(gateway.store, model.name, start=start, end=end, limit=MAX_REQUESTS)
    if not rows:
        why = f"No request of {model.name!r} ended in this time: choose a longer range, or send some requests first."
        raise invalid_request(why, "range")
    newest_only = len(rows) == MAX_REQUESTS
    first = rows[0].at_s if newest_only else min(float(start), rows[0].at_s)
    checkpoint = await asyncio.to_thread(read_json, model.directory / "config.json")
    asked = WhatIf(
        config=_config_of(gateway, model),
        checkpoint=checkpoint or None,
        kv_cache_dtype="" if card is None else card.kv_dtype,
        quantization="" if card is None else card.quantization,
        read_bytes_per_s=0.0 if card is None else card.read_bytes_per_s,
        replica=replica,
        requests=_requests(rows, first),
        duration_s=max(1.0, end - first),
        changes=question.changes,
    )
    return Window(start=first, end=end, requests=len(rows), newest_only=newest_only), asked


def _generates(model: ServedModel) -> bool:
    """Whether Kvarn's engine generates its text, as far as that is known before its first start."""
    return model.config.external is None and (model.card is None or model.card.kind == "generate")


def _choice(model: ServedModel) -> SimulatedModel:
    card, engine = model.card, model.config.engine
    return SimulatedModel(
        name=model.name,
        replicas=len(model.replicas.ready) or len(model.replicas),
        token_budget=engine.token_budget,
        max_num_seqs=engine.max_num_seqs if card is None else card.max_num_seqs,
        kv_cache_dtype="" if card is None else card.kv_dtype,
        quantization="" if card is None else card.quantization,
        measured=bool(_times_of(model)),
    )


def _times_of(model: ServedModel) -> list[StepTimes]:
    """Step times as its ready engines know them."""
    return [each.stats.step_times for each in model.replicas.ready_clients() if each.stats.step_times is not None]


def _replica(model: ServedModel) -> ReplicaModel:
    """A replica as its engines have measured themselves: the mean of their step times. Raises `ApiError` 400."""
    times, card = _times_of(model), model.card
    if not _generates(model):
        raise invalid_request(
            f"{model.name!r} cannot be simulated: Kvarn's engine does not generate its text.", "model"
        )
    if not times or card is None:
        message = f"The engines of {model.name!r} have not measured their steps yet: send some requests first."
        raise invalid_request(message, "model")
    mean = StepTimes(
        **{name: sum(getattr(each, name) for each in times) / len(times) for name in StepTimes.__struct_fields__}
    )
    config = model.config
    return ReplicaModel(
        step_times=mean,
        kv_blocks=card.kv_blocks,
        block_bytes=0,
        max_context_length=card.max_context_length,
        devices=config.tensor_parallel_size * config.pipeline_parallel_size * config.prefill_context_parallel_size,
        start_s=Distribution((sum(card.start_s.values()),)),
        source="steps as the engines measured them",
    )


def _config_of(gateway: Gateway, model: ServedModel) -> dict[str, Any]:
    """The model's part of the configuration, with as many replicas as it has."""
    config = gateway.config
    now = model.config.model_copy(update={"replicas": max(1, len(model.replicas.ready)), "autoscale": None})
    sections = {name: getattr(config, name).model_dump(mode="json") for name in _SECTIONS}
    return {"models": [now.model_dump(mode="json")], **sections}


def _requests(rows: list[LedgerRequest], first: float) -> list[RecordedRequest]:
    projects: dict[str, int] = {}
    return [
        RecordedRequest(
            at_s=max(0.0, round(each.at_s - first, 3)),
            input_tokens=max(1, each.input_tokens),
            cached_tokens=each.cached_tokens,
            output_tokens=each.output_tokens,
            project=projects.setdefault(each.project_id, len(projects)),
            ttft_s=each.ttft_s if each.finished else None,
            total_s=each.duration_s if each.finished else None,
        )
        for each in rows
    ]
