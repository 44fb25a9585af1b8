"""`/v1/models`: what is served, whether it is ready, and how busy it is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import msgspec
from pydantic import Field

from kvarn.answers.record import RequestRecord
from kvarn.catalog.models import ServedModel
from kvarn.config.routes import RouteConfig
from kvarn.gateway.dependencies import GatewayDep, RecordDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import CHECKED, QueryModel, Text
from kvarn.gateway.state import Gateway
from kvarn.identity.scopes import may_see_adapter, may_use_adapter, may_use_model
from kvarn.store.owner import Principal
from kvarn.wire.anthropic.dialect import ANTHROPIC
from kvarn.wire.anthropic.objects import Listed, ModelInfo, model_info
from kvarn.wire.messages import AdapterInfo
from kvarn.wire.openai.errors import invalid_request, model_not_found
from kvarn.wire.openai.models import Capacity, Model, ModelList

router = json_router("/v1/models", "models")


class ModelQuery(QueryModel):
    """Which models, for clients of Anthropic's API; others get all."""

    limit: int = Field(20, ge=1, description="Models at most.")
    after_id: Text | None = Field(None, description="Only models that come after this one.")
    before_id: Text | None = Field(None, description="Only models that come before this one.")


@router.get("", summary="List the served models", dependencies=CHECKED)
async def list_models(
    gateway: GatewayDep, record: RecordDep, query: ModelQuery
) -> Annotated[ModelList | Listed[ModelInfo], ModelList]:
    """Every model and adapter in the key's scope, with readiness and capacity. Clients that send `anthropic-version`
    get those that write, page by page, in Anthropic's shape."""
    models = visible_models(gateway, record.principal)
    if record.reply.dialect is ANTHROPIC:
        return _page([model_info(model) for model in models if model.kind in (None, "generate")], query)
    return ModelList(data=models)


def visible_models(gateway: Gateway, principal: Principal) -> list[Model]:
    models = [model for model in gateway.models if may_use_model(principal, model.name)]
    adapters = [
        _describe_adapter(model, adapter)
        for model in models
        for adapter in model.adapters.values()
        if may_see_adapter(principal, adapter) and may_use_adapter(principal, adapter.name)
    ]
    routes = [
        _describe_route(gateway, route)
        for route in gateway.catalog.routes
        if may_use_model(principal, route.name) and not _stands_for_itself(gateway, route.name)
    ]
    return [*map(_describe, models), *adapters, *routes]


def _page(models: list[ModelInfo], query: ModelQuery) -> Listed[ModelInfo]:
    """The first models behind `after_id`, or the last before `before_id`."""
    ids = [model.id for model in models]
    for name, given in (("after_id", query.after_id), ("before_id", query.before_id)):
        if given is not None and given not in ids:
            raise invalid_request(f"No model has the {name!r} {given!r}.", name)
    first = ids.index(query.after_id) + 1 if query.after_id else 0
    last = ids.index(query.before_id) if query.before_id else len(ids)
    found = models[first:last]
    page = found[-query.limit :] if query.before_id and not query.after_id else found[: query.limit]
    first_id, last_id = (page[0].id, page[-1].id) if page else (None, None)
    return Listed(data=page, has_more=len(page) < len(found), first_id=first_id, last_id=last_id)


@router.get("/{model:path}", summary="Describe one model")
async def get_model(gateway: GatewayDep, record: RecordDep, model: str) -> Annotated[Model | ModelInfo, Model]:
    """One model, with readiness and capacity; 404 `model_not_found` for one that is not served or not in scope."""
    found = find_model(gateway, record, model)
    return model_info(found) if record.reply.dialect is ANTHROPIC else found


def find_model(gateway: Gateway, record: RequestRecord, model: str) -> Model:
    """A model, adapter or route. Raises `ApiError`: 404 `model_not_found`, it is not served, or not in scope."""

    def visible(name: str) -> bool:
        return may_use_model(record.principal, name)

    route = gateway.catalog.routes.find(model)
    if route is not None and visible(route.name) and not _stands_for_itself(gateway, route.name):
        return _describe_route(gateway, route)
    adapter = gateway.models.find_adapter(model)
    if adapter is not None and visible(adapter[0].name):
        served, info = adapter
        if may_see_adapter(record.principal, info) and may_use_adapter(record.principal, info.name):
            record.choice.name = served.name
            return _describe_adapter(served, info)
    found = gateway.models.find(model, visible)
    if not visible(found.name):
        raise model_not_found(model[:200], [served.name for served in gateway.models if visible(served.name)])
    record.choice.name = found.name
    return _describe(found)


def _stands_for_itself(gateway: Gateway, name: str) -> bool:
    """Whether a route's name is that of a model or an adapter: a rollout shares it between two versions."""
    return gateway.models.named(name) is not None or gateway.models.find_adapter(name) is not None


def _describe_route(gateway: Gateway, route: RouteConfig) -> Model:
    """The target that gets most of the requests, under the route's name."""
    target = max(route.targets, key=lambda each: each.weight).model
    found = gateway.models.find_adapter(target)
    model = gateway.models.find(gateway.models.name_of(target)) if found is None else found[0]
    return msgspec.structs.replace(_describe(model), id=route.name, aliases=[], parent=target)


def _describe_adapter(model: ServedModel, adapter: AdapterInfo) -> Model:
    own = {"id": adapter.name, "root": adapter.path, "parent": model.name, "aliases": [f"{model.name}:{adapter.name}"]}
    return msgspec.structs.replace(_describe(model), created=adapter.loaded_at or model.created, **own)


def _describe(model: ServedModel) -> Model:
    card = model.card
    kind = card.kind if card else None
    # Before its first step an engine has sent no gauges: all its blocks are free.
    blocks = card.kv_blocks if card else 0
    stats = [replica.stats for replica in model.replicas.values()]
    return Model(
        id=model.name,
        created=model.created,
        root=model.config.path,
        aliases=list(model.config.aliases),
        kind=kind,
        state=str(model.state),
        ready=model.ready,
        max_model_len=card.max_context_length if card else None,
        default_sampling_params=asdict(model.text.sampling_defaults) if model.text and kind == "generate" else None,
        capacity=Capacity(
            kv_blocks_total=sum(each.kv_blocks_total or blocks for each in stats),
            kv_blocks_free=sum(each.kv_blocks_free if each.kv_blocks_total else blocks for each in stats),
            running=sum(each.running for each in stats),
            waiting=sum(each.waiting for each in stats),
        ),
    )
