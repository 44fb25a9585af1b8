"""Ranking and scoring texts by the cosine similarity of their embeddings (a bi-encoder)."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Coroutine, Sequence
from operator import mul

from msgspec import UNSET

from kvarn.serving.context import ServingContext
from kvarn.serving.embeddings.operation import embed_tokens
from kvarn.serving.models import ReadyModel
from kvarn.serving.work import RequestRecord, Work
from kvarn.wire.openai.encoders import (
    EmbeddingUsage,
    RerankAnswer,
    RerankRequest,
    RerankResult,
    Score,
    ScoreAnswer,
    ScoreRequest,
)
from kvarn.wire.openai.errors import ContextLengthError, invalid_request

Vector = tuple[float, ...]


async def start_rerank(
    serving: ServingContext, record: RequestRecord, request: RerankRequest, *, show_documents: bool
) -> Coroutine[None, None, RerankAnswer]:
    """Check a request, tokenize its texts, and take it in; what comes back does the work.

    Args:
        serving: The gateway.
        record: The request.
        request: Its body.
        show_documents: Whether texts are sent back where the request does not say.

    Raises:
        ApiError: It cannot be answered as request, or not now.
    """
    model = serving.ready_model(record, request.model, "embed")
    texts = request.texts
    _check_count(serving, len(texts), "documents")
    named = [("query", request.query), *((f"documents[{i}]", text) for i, text in enumerate(texts))]
    batch = await serving.run(record, lambda: _tokenize(model, named, request.max_tokens_per_doc))
    work = await serving.begin(record, model, prompt_tokens=sum(map(len, batch)))
    show = show_documents if request.return_documents is None else request.return_documents

    async def run() -> RerankAnswer:
        query, *documents = await _embed(record.id, batch, model, work)
        scores = await serving.run(record, lambda: [cosine(query, each) for each in documents])
        ranked = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: request.top_n]
        return RerankAnswer(
            id=f"rerank-{record.id}",
            model=model.name,
            results=[
                RerankResult(index=i, relevance_score=scores[i], document={"text": texts[i]} if show else UNSET)
                for i in ranked
            ],
            usage=_usage(work),
            meta={"tokens": {"input_tokens": work.prompt_tokens}},
        )

    return run()


async def start_score(
    serving: ServingContext, record: RequestRecord, request: ScoreRequest
) -> Coroutine[None, None, ScoreAnswer]:
    """As `start_rerank`, for pairs of texts. Raises as it does."""
    model = serving.ready_model(record, request.model, "embed")
    left, right = request.text_1, request.text_2
    _check_count(serving, len(left), "text_1")
    _check_count(serving, len(right), "text_2")
    named = [(f"text_1[{i}]", text) for i, text in enumerate(left)]
    named += [(f"text_2[{i}]", text) for i, text in enumerate(right)]
    batch = await serving.run(record, lambda: _tokenize(model, named))
    work = await serving.begin(record, model, prompt_tokens=sum(map(len, batch)))

    async def run() -> ScoreAnswer:
        vectors = await _embed(record.id, batch, model, work)
        firsts, seconds = vectors[: len(left)], vectors[len(left) :]
        if len(firsts) == 1:
            firsts = firsts * len(seconds)
        scores = await serving.run(record, lambda: [cosine(*pair) for pair in zip(firsts, seconds, strict=True)])
        return ScoreAnswer(
            id=f"score-{record.id}",
            created=int(time.time()),
            model=model.name,
            data=[Score(index=i, score=score) for i, score in enumerate(scores)],
            usage=_usage(work),
        )

    return run()


def cosine(left: Vector, right: Vector) -> float:
    """Cosine of the angle between two vectors, from -1 to 1; 0 where one of them is all zeros."""
    size = math.hypot(*left) * math.hypot(*right)
    return max(-1.0, min(1.0, sum(map(mul, left, right)) / size)) if size else 0.0


async def _embed(request_id: str, batch: list[list[int]], model: ReadyModel, work: Work) -> list[Vector]:
    return [
        struct.unpack(f"<{len(vector) // 4}f", vector) for vector in await embed_tokens(request_id, batch, model, work)
    ]


def _check_count(serving: ServingContext, count: int, param: str) -> None:
    limit = serving.limits.max_embedding_inputs
    if count > limit:
        raise invalid_request(f"{param!r} has {count} texts; this server takes at most {limit}.", param)


def _tokenize(
    model: ReadyModel, named: Sequence[tuple[str, str]], max_tokens_per_doc: int | None = None
) -> list[list[int]]:
    """Token ids of texts, each with the name of its field; those after the first are cut to `max_tokens_per_doc`."""
    batch: list[list[int]] = []
    longest = model.card.max_context_length
    for position, (where, text) in enumerate(named):
        if not text:
            raise invalid_request(f"{where!r} may not be empty.", where)
        token_ids = model.text.tokenizer.encode(text, add_special_tokens=True)
        if max_tokens_per_doc is not None and position:
            token_ids = token_ids[:max_tokens_per_doc]
        if len(token_ids) > longest:
            raise ContextLengthError(longest, len(token_ids), 0, where)
        batch.append(token_ids)
    return batch


def _usage(work: Work) -> EmbeddingUsage:
    return EmbeddingUsage(prompt_tokens=work.prompt_tokens, total_tokens=work.prompt_tokens)
