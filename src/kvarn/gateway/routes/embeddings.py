"""`/v1/embeddings`: texts or token ids to vectors."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from starlette.responses import Response

from kvarn.gateway.answer import json_when_done
from kvarn.gateway.dependencies import GatewayDep, RecordDep, json_body
from kvarn.gateway.openapi import JsonRoute
from kvarn.serving.embeddings.operation import start_embedding
from kvarn.wire.openai.embeddings import EmbeddingList, EmbeddingRequest

router = APIRouter(prefix="/v1", tags=["embeddings"], route_class=JsonRoute)


@router.post("/embeddings", summary="Embed texts")
async def create_embeddings(
    gateway: GatewayDep, record: RecordDep, body: Annotated[EmbeddingRequest, json_body(EmbeddingRequest)]
) -> Annotated[Response, EmbeddingList]:
    """Embed one input or a batch with an encoder model; `encoding_format` is `float` or `base64`."""
    work, held = await start_embedding(gateway, record, body)
    return json_when_done(work, held)
