"""`/v1/embeddings`: texts or token ids to vectors."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.answer import json_when_done
from kvarn.gateway.openapi import shapes
from kvarn.gateway.record import record_of
from kvarn.gateway.state import gateway_of
from kvarn.serving.embeddings.operation import start_embedding
from kvarn.wire.openai.embeddings import EmbeddingList, EmbeddingRequest

router = APIRouter(prefix="/v1", tags=["embeddings"])


@router.post("/embeddings", summary="Embed texts")
@shapes(EmbeddingList, EmbeddingRequest)
async def create_embeddings(request: Request) -> Response:
    """Embed one input or a batch with an encoder model; `encoding_format` is `float` or `base64`."""
    gateway = gateway_of(request)
    asked = await gateway.read(request, EmbeddingRequest)
    work, held = await start_embedding(gateway, record_of(request.scope), asked)
    return json_when_done(work, held)
