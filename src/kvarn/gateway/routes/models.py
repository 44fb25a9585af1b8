"""`/v1/models`: what is served, whether it is ready, and how busy it is."""

from __future__ import annotations

from dataclasses import asdict

import msgspec
from fastapi import APIRouter

from kvarn.config.routes import RouteConfig
from kvarn.gateway.dependencies import GatewayDep, PrincipalDep, RecordDep
from kvarn.gateway.openapi import JsonRoute
from kvarn.gateway.state import Gateway
from kvarn.identity.scopes import may_see_adapter, may_use_adapter, may_use_model
from kvarn.serving.models import ServedModel
from kvarn.wire.messages import AdapterInfo
from kvarn.wire.openai.errors import model_not_found
from kvarn.wire.openai.models import Capacity, Model, ModelList

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=JsonRoute)


@router.get("", summary="List the served models")
async def list_models(gateway: GatewayDep, principal: PrincipalDep) -> ModelList:
    """Every model and adapter in the key's scope, with readiness and capacity."""
    models = [model for model in gateway.models if may_use_model(principal, model.name)]
    adapters = [
        _describe_adapter(model, adapter)
        for model in models
        for adapter in model.adapters.values()
        if may_see_adapter(principal, adapter) and may_use_adapter(principal, adapter.name)
    ]
    routes = [
        _describe_route(gateway, route)
        for route in gateway.routes
        if may_use_model(principal, route.name) and not _stands_for_itself(gateway, route.name)
    ]
    return ModelList(data=[*map(_describe, models), *adapters, *routes])


@router.get("/{model:path}", summary="Describe one model")
async def get_model(gateway: GatewayDep, record: RecordDep, model: str) -> Model:
    """One model, with readiness and capacity; 404 `model_not_found` for one that is not served or not in scope."""

    def visible(name: str) -> bool:
        return may_use_model(record.principal, name)

    route = gateway.routes.find(model)
    if route is not None and visible(route.name) and not _stands_for_itself(gateway, route.name):
        return _describe_route(gateway, route)
    adapter = gateway.models.find_adapter(model)
    if adapter is not None and visible(adapter[0].name):
        served, info = adapter
        if may_see_adapter(record.principal, info) and may_use_adapter(record.principal, info.name):
            record.model = served.name
            return _describe_adapter(served, info)
    found = gateway.models.find(model, visible)
    if not visible(found.name):
        raise model_not_found(model[:200], [served.name for served in gateway.models if visible(served.name)])
    record.model = found.name
    return _describe(found)


def _stands_for_itself(gateway: Gateway, name: str) -> bool:
    """Whether a route's name is that of a model or an adapter: a rollout shares it between two versions."""
    return gateway.models.named(name) is not None or gateway.models.find_adapter(name) is not None


def _describe_route(gateway: Gateway, route: RouteConfig) -> Model:
    """As the target is that gets most of the requests, under the route's name."""
    target = max(route.targets, key=lambda each: each.weight).model
    found = gateway.models.find_adapter(target)
    model = gateway.models.find(gateway.models.name_of(target)) if found is None else found[0]
    return msgspec.structs.replace(_describe(model), id=route.name, aliases=[], parent=target)


def _describe_adapter(model: ServedModel, adapter: AdapterInfo) -> Model:
    """As its model is, under its own name."""
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
