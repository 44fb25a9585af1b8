"""`/v1/embeddings`, `/v1/rerank`, `/v1/score` and `/v1/moderations`: what encoder models answer."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from starlette.responses import Response

from kvarn.gateway.answer import json_when_done
from kvarn.gateway.dependencies import GatewayDep, RecordDep
from kvarn.gateway.openapi import JsonRoute
from kvarn.serving.embeddings import start_embedding, start_rerank, start_score
from kvarn.serving.moderation.operation import start_moderation
from kvarn.wire.openai.encoders import (
    EmbeddingList,
    EmbeddingRequest,
    ModerationList,
    ModerationRequest,
    RerankAnswer,
    RerankRequest,
    ScoreAnswer,
    ScoreRequest,
)

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
    """The same, by Cohere's path: texts are sent back only where the request says so."""
    return json_when_done(await start_rerank(gateway, record, body, show_documents=False))


@router.post("/v1/score", summary="Compare texts in pairs", tags=["rerank"])
@router.post("/score", include_in_schema=False)
async def score(gateway: GatewayDep, record: RecordDep, body: ScoreRequest) -> Annotated[Response, ScoreAnswer]:
    """How near two texts are, for one pair or many, with an embedding model."""
    return json_when_done(await start_score(gateway, record, body))


@router.post("/v1/moderations", summary="Moderate texts", tags=["moderations"])
async def create_moderation(
    gateway: GatewayDep, record: RecordDep, body: ModerationRequest
) -> Annotated[Response, ModerationList]:
    """Look at one text or several: a score from 0 to 1 for each of OpenAI's categories."""
    return json_when_done(await start_moderation(gateway, record, body))
