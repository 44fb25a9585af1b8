"""`/v1/rerank` and `/v1/score`, also under the paths that vLLM, Jina and Cohere give them."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.answer import json_when_done
from kvarn.gateway.openapi import shapes
from kvarn.gateway.record import record_of
from kvarn.gateway.state import gateway_of
from kvarn.serving.embeddings.rerank import start_rerank, start_score
from kvarn.wire.openai.rerank import RerankAnswer, RerankRequest, ScoreAnswer, ScoreRequest

router = APIRouter(tags=["rerank"])

_COHERE = "/v2/rerank"
"""Here texts are sent back only where asked for."""


@router.post("/v1/rerank", summary="Rank texts by relevance")
@router.post("/rerank", include_in_schema=False)
@router.post(_COHERE, include_in_schema=False)
@shapes(RerankAnswer, RerankRequest)
async def rerank(request: Request) -> Response:
    """Rank documents by how near they are to a query, with an embedding model."""
    gateway, record = gateway_of(request), record_of(request.scope)
    asked = await gateway.read(request, RerankRequest)
    show = record.endpoint != _COHERE
    return json_when_done(await start_rerank(gateway, record, asked, show_documents=show))


@router.post("/v1/score", summary="Compare texts in pairs")
@router.post("/score", include_in_schema=False)
@shapes(ScoreAnswer, ScoreRequest)
async def score(request: Request) -> Response:
    """How near two texts are, for one pair or many, with an embedding model."""
    gateway, record = gateway_of(request), record_of(request.scope)
    asked = await gateway.read(request, ScoreRequest)
    return json_when_done(await start_score(gateway, record, asked))
