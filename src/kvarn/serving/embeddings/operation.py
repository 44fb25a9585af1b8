"""Embedding texts."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Coroutine

from kvarn.replica.client.protocol import ReplicaLostError, RequestRefusedError
from kvarn.serving.context import ServingContext
from kvarn.serving.generation import check_token_ids
from kvarn.serving.held_bytes import HeldBytes
from kvarn.serving.models import ReadyModel
from kvarn.serving.work import RequestRecord, Work
from kvarn.wire.openai.common import as_list
from kvarn.wire.openai.encoders import Embedding, EmbeddingList, EmbeddingRequest, EmbeddingUsage
from kvarn.wire.openai.errors import ContextLengthError, invalid_request

_BYTES = 64
"""Memory of a number of an answer: as float32, as Python's object, and as JSON."""
_BYTES_IN_BASE64 = 16
"""The same where vectors are sent in base64."""


async def start_embedding(
    serving: ServingContext, record: RequestRecord, request: EmbeddingRequest
) -> tuple[Coroutine[None, None, EmbeddingList], HeldBytes]:
    """Check a request, tokenize its inputs, and take it in; what comes back does the work, and counts its memory.

    Raises:
        ApiError: It cannot be answered as request, or not now.
    """
    model = serving.ready_model(record, request.model, "embed")
    inputs = as_list(request.input)
    _check(request, inputs, model, serving)
    batch = await serving.run(record, lambda: [_token_ids(each, model) for each in inputs])
    for position, token_ids in enumerate(batch):
        _check_length(position, token_ids, model)
    size = _BYTES_IN_BASE64 if request.encoding_format == "base64" else _BYTES
    held = HeldBytes(serving.held, record, size * len(batch) * (model.card.embedding_size or 0))
    work = await serving.begin(record, model, prompt_tokens=sum(len(token_ids) for token_ids in batch))
    return _embed(serving, record, request, batch, model, work), held


async def embed_tokens(request_id: str, batch: list[list[int]], model: ReadyModel, work: Work) -> list[bytes]:
    """Vectors of token-id inputs, float32 little-endian, counted to `work`. Raises as `Replica.embed` does."""
    usage = work.usage
    try:
        vectors = await model.replica.embed(request_id, batch)
    except (RequestRefusedError, ReplicaLostError):
        usage.failed = True
        raise
    except asyncio.CancelledError:  # the engine has been at it: as with an answer, leaving early is not free
        usage.count(prompt=work.prompt_tokens)
        raise
    usage.count(prompt=work.prompt_tokens)
    usage.pending -= 1
    return vectors


async def _embed(
    serving: ServingContext,
    record: RequestRecord,
    request: EmbeddingRequest,
    batch: list[list[int]],
    model: ReadyModel,
    work: Work,
) -> EmbeddingList:
    vectors = await embed_tokens(record.id, batch, model, work)
    as_base64 = request.encoding_format == "base64"
    encoded = await serving.run(record, lambda: [_encode(vector, as_base64) for vector in vectors])
    tokens = work.prompt_tokens
    return EmbeddingList(
        model=model.name,
        data=[Embedding(index=i, embedding=each) for i, each in enumerate(encoded)],
        usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
    )


def _check(
    request: EmbeddingRequest, inputs: list[str | list[int]], model: ReadyModel, serving: ServingContext
) -> None:
    limit = serving.limits.max_embedding_inputs
    if len(inputs) > limit:
        raise invalid_request(f"'input' has {len(inputs)} items; this server takes at most {limit}.", "input")
    size = model.card.embedding_size
    if request.dimensions is not None and request.dimensions != size:
        message = (
            f"'dimensions' may only be {size}, the size of {model.name!r}: its vectors are not made to be shortened."
        )
        raise invalid_request(message, "dimensions", "unsupported_value")
    if any(each == "" for each in inputs):
        raise invalid_request("'input' may not hold an empty string.", "input")


def _token_ids(text_or_ids: str | list[int], model: ReadyModel) -> list[int]:
    if isinstance(text_or_ids, str):
        return model.text.tokenizer.encode(text_or_ids, add_special_tokens=True)
    return text_or_ids


def _check_length(position: int, token_ids: list[int], model: ReadyModel) -> None:
    where = f"input[{position}]"
    longest = model.card.max_context_length
    if len(token_ids) > longest:
        raise ContextLengthError(longest, len(token_ids), 0, where)
    check_token_ids(token_ids, model, where)


def _encode(vector: bytes, as_base64: bool) -> list[float] | str:
    return (
        base64.b64encode(vector).decode("ascii") if as_base64 else list(struct.unpack(f"<{len(vector) // 4}f", vector))
    )
