"""`/v1/rerank` and `/v1/score`, also under the paths that vLLM, Jina and Cohere give them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from starlette.responses import Response

from kvarn.gateway.answer import json_when_done
from kvarn.gateway.dependencies import GatewayDep, RecordDep, json_body
from kvarn.gateway.openapi import JsonRoute
from kvarn.serving.embeddings.rerank import start_rerank, start_score
from kvarn.wire.openai.rerank import RerankAnswer, RerankRequest, ScoreAnswer, ScoreRequest

router = APIRouter(tags=["rerank"], route_class=JsonRoute)

_COHERE = "/v2/rerank"
"""Here texts are sent back only where the request says so."""


@router.post("/v1/rerank", summary="Rank texts by relevance")
@router.post("/rerank", include_in_schema=False)
@router.post(_COHERE, include_in_schema=False)
async def rerank(
    gateway: GatewayDep, record: RecordDep, body: Annotated[RerankRequest, json_body(RerankRequest)]
) -> Annotated[Response, RerankAnswer]:
    """Rank documents by how near they are to a query, with an embedding model."""
    return json_when_done(await start_rerank(gateway, record, body, show_documents=record.endpoint != _COHERE))


@router.post("/v1/score", summary="Compare texts in pairs")
@router.post("/score", include_in_schema=False)
async def score(
    gateway: GatewayDep, record: RecordDep, body: Annotated[ScoreRequest, json_body(ScoreRequest)]
) -> Annotated[Response, ScoreAnswer]:
    """How near two texts are, for one pair or many, with an embedding model."""
    return json_when_done(await start_score(gateway, record, body))
