"""Answering `/api/embed` and `/api/embeddings`."""

from __future__ import annotations

import math
from collections.abc import Coroutine

from kvarn.answers.context import ServingContext
from kvarn.answers.encoders.operation import start_embedding
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.ollama.models import served_name
from kvarn.answers.ollama.request import in_ollama_terms
from kvarn.answers.ollama.writer import nanoseconds
from kvarn.answers.record import RequestRecord
from kvarn.clock import SYSTEM_CLOCK
from kvarn.wire.ollama.answers import EmbedAnswer
from kvarn.wire.ollama.requests import EmbedRequest
from kvarn.wire.openai.encoders import EmbeddingList, EmbeddingRequest
from kvarn.wire.openai.errors import ApiError, ContextLengthError
from kvarn.wire.openai.parse import validate


async def start_embed(
    serving: ServingContext, record: RequestRecord, request: EmbedRequest
) -> tuple[Coroutine[None, None, EmbedAnswer], HeldBytes]:
    """Check a request and take it in; what comes back does the work, and counts its memory. Inputs longer than the
    model's context are cut, unless `truncate` is false; without any the model is made ready. Raises `ApiError`."""
    name = served_name(serving, request.model)
    if not request.texts:
        await serving.catalog.wait_for(record, name, "embed")
        return _empty(name), HeldBytes(serving.held, record)
    data = {"model": name, "input": request.texts, "dimensions": request.dimensions or None}
    try:
        embedding = validate(EmbeddingRequest, data)
        try:
            work, held = await start_embedding(serving, record, embedding)
        except ContextLengthError:
            if request.truncate is False:
                raise
            cut = await _cut(serving, record, name, request.texts)
            work, held = await start_embedding(serving, record, embedding.model_copy(update={"input": cut}))
    except ApiError as error:
        raise in_ollama_terms(error) from None
    return _run(serving, record, work, SYSTEM_CLOCK.now()), held


async def _run(
    serving: ServingContext, record: RequestRecord, work: Coroutine[None, None, EmbeddingList], started: float
) -> EmbedAnswer:
    answer = await work
    vectors = [each.embedding for each in answer.data if isinstance(each.embedding, list)]
    embeddings = await serving.run(record, lambda: [_normalized(vector) for vector in vectors])
    return EmbedAnswer(
        model=answer.model,
        embeddings=embeddings,
        total_duration=nanoseconds(SYSTEM_CLOCK.now() - record.timeline.received_s),
        load_duration=nanoseconds(started - record.timeline.received_s),
        prompt_eval_count=answer.usage.prompt_tokens,
    )


async def _empty(name: str) -> EmbedAnswer:
    return EmbedAnswer(model=name, embeddings=[])


async def _cut(serving: ServingContext, record: RequestRecord, name: str, texts: list[str]) -> list[list[int]]:
    """The texts as tokens, as many as the model reads; the last one, which marks the end for most, is kept."""
    model = serving.catalog.ready(record, name, "embed")
    longest, tokenizer = model.card.max_context_length, model.text.tokenizer

    def cut() -> list[list[int]]:
        all_ids = [tokenizer.encode(text, add_special_tokens=True) for text in texts]
        return [ids if len(ids) <= longest else [*ids[: longest - 1], ids[-1]] for ids in all_ids]

    inputs = await serving.run(record, cut)
    record.reply.warnings.append(f"cut 'input' to {longest} tokens, the model's context")
    return inputs


def _normalized(vector: list[float]) -> list[float]:
    length = math.sqrt(math.fsum(each * each for each in vector))
    return vector if not length or abs(length - 1) < 1e-4 else [each / length for each in vector]
