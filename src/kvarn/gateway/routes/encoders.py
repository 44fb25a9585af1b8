"""`/v1/embeddings`, `/v1/rerank`, `/v1/score`, `/v1/moderations`, `/pooling`: what encoder models answer."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from starlette.responses import Response

from kvarn.answers.embeddings import start_embedding, start_rerank, start_score
from kvarn.answers.moderation.operation import start_moderation
from kvarn.clock import SYSTEM_CLOCK
from kvarn.gateway.answer import json_when_done
from kvarn.gateway.dependencies import GatewayDep, RecordDep
from kvarn.gateway.openapi import JsonRoute
from kvarn.wire.openai.encoders import (
    ClassifyRequest,
    EmbeddingList,
    EmbeddingRequest,
    ModerationList,
    ModerationRequest,
    Pooled,
    PooledList,
    PoolingRequest,
    RerankAnswer,
    RerankRequest,
    ScoreAnswer,
    ScoreRequest,
)
from kvarn.wire.openai.errors import invalid_request

router = APIRouter(route_class=JsonRoute)


@router.post("/v1/embeddings", summary="Embed texts", tags=["embeddings"])
async def create_embeddings(
    gateway: GatewayDep, record: RecordDep, body: EmbeddingRequest
) -> Annotated[Response, EmbeddingList]:
    """Embed one input or a batch with an encoder model; `encoding_format` is `float` or `base64`."""
    work, held = await start_embedding(gateway, record, body)
    return json_when_done(work, held)


@router.post("/v1/rerank", summary="Rank texts by relevance", tags=["rerank"])
@router.post("/rerank", include_in_schema=False)
async def rerank(gateway: GatewayDep, record: RecordDep, body: RerankRequest) -> Annotated[Response, RerankAnswer]:
    """Rank documents by how near they are to a query, with an embedding model."""
    return json_when_done(await start_rerank(gateway, record, body, show_documents=True))


@router.post("/v2/rerank", include_in_schema=False)
async def rerank_as_cohere(
    gateway: GatewayDep, record: RecordDep, body: RerankRequest
) -> Annotated[Response, RerankAnswer]:
    """Rerank by Cohere's path: texts are sent back only where the request says so."""
    return json_when_done(await start_rerank(gateway, record, body, show_documents=False))


@router.post("/v1/score", summary="Compare texts in pairs", tags=["rerank"])
@router.post("/score", include_in_schema=False)
async def score(gateway: GatewayDep, record: RecordDep, body: ScoreRequest) -> Annotated[Response, ScoreAnswer]:
    """Score the nearness of two texts, for one pair or many."""
    return json_when_done(await start_score(gateway, record, body))


@router.post("/pooling", summary="Embed texts, in vLLM's shape", tags=["embeddings"])
@router.post("/v1/pooling", include_in_schema=False)
async def pool(gateway: GatewayDep, record: RecordDep, body: PoolingRequest) -> Annotated[Response, PooledList]:
    """Embed one input or a batch; each vector is the `data` of its item."""
    work, held = await start_embedding(gateway, record, body)

    async def pooled() -> PooledList:
        answer = await work
        data = [Pooled(index=each.index, data=each.embedding) for each in answer.data]
        return PooledList(
            id=f"pool-{record.id}", created=int(SYSTEM_CLOCK.time()), model=answer.model, data=data, usage=answer.usage
        )

    return json_when_done(pooled(), held)


@router.post("/classify", include_in_schema=False)
@router.post("/v1/classify", include_in_schema=False)
async def classify(gateway: GatewayDep, record: RecordDep, body: ClassifyRequest) -> None:
    """Models with several labels are not served: a 400 that says what is."""
    name = gateway.catalog.find(record, body.model).name
    why = "no model of this server classifies. For relevance use /v1/score or /v1/rerank, for harm /v1/moderations."
    raise invalid_request(f"The model {name!r} gives no labels: {why}", "model", "model_not_supported")


@router.post("/v1/moderations", summary="Moderate texts", tags=["moderations"])
async def create_moderation(
    gateway: GatewayDep, record: RecordDep, body: ModerationRequest
) -> Annotated[Response, ModerationList]:
    """Look at one text or several: a score from 0 to 1 for each of OpenAI's categories."""
    return json_when_done(await start_moderation(gateway, record, body))
