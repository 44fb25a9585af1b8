"""`/v1/models`: what is served, whether it is ready, and how busy it is."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter

from kvarn.gateway.dependencies import GatewayDep, PrincipalDep, RecordDep
from kvarn.gateway.openapi import JsonRoute
from kvarn.identity.scopes import may_use_model
from kvarn.serving.models import ServedModel
from kvarn.wire.openai.errors import model_not_found
from kvarn.wire.openai.models import Capacity, Model, ModelList

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=JsonRoute)


@router.get("", summary="List the served models")
async def list_models(gateway: GatewayDep, principal: PrincipalDep) -> ModelList:
    """Every model in the key's scope, with readiness and capacity."""
    return ModelList(data=[_describe(model) for model in gateway.models if may_use_model(principal, model.name)])


@router.get("/{model:path}", summary="Describe one model")
async def get_model(gateway: GatewayDep, record: RecordDep, model: str) -> Model:
    """One model, with readiness and capacity; 404 `model_not_found` for one that is not served or not in scope."""

    def visible(name: str) -> bool:
        return may_use_model(record.principal, name)

    found = gateway.models.find(model, visible)
    if not visible(found.name):
        raise model_not_found(model[:200], [served.name for served in gateway.models if visible(served.name)])
    record.model = found.name
    return _describe(found)


def _describe(model: ServedModel) -> Model:
    card = model.replica.card
    kind = card.kind if card else None
    # Before its first step an engine has sent no gauges: all its blocks are free.
    blocks = card.kv_blocks if card else 0
    stats = [replica.stats for replica in model.replicas.values()]
    return Model(
        id=model.name,
        created=model.created,
        aliases=list(model.config.aliases),
        kind=kind,
        state=str(model.replica.state),
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
