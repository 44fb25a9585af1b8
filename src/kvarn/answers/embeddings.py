"""Embedding texts, and ranking and scoring them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine

from msgspec import UNSET

from kvarn.answers.context import ServingContext
from kvarn.answers.generation import check_token_ids
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.relevance import NamedText, is_cross_encoder, numbers, pair_scores, tokenize_pairs, vector_scores
from kvarn.answers.work import RequestRecord, Work
from kvarn.catalog.failover import embed_anywhere
from kvarn.catalog.models import ReadyModel
from kvarn.clock import SYSTEM_CLOCK
from kvarn.external.embeddings import embed_external, external_inputs, picked
from kvarn.replica.client.protocol import ReplicaLostError, RequestRefusedError
from kvarn.wire.openai.common import as_list
from kvarn.wire.openai.encoders import (
    Embedding,
    EmbeddingList,
    EmbeddingRequest,
    EmbeddingUsage,
    RerankAnswer,
    RerankRequest,
    RerankResult,
    Score,
    ScoreAnswer,
    ScoreRequest,
)
from kvarn.wire.openai.errors import ContextLengthError, invalid_request

_BYTES = 64
"""Memory of a number of an answer: as float32, as Python's object, and as JSON."""
_SIZE_UNKNOWN = 4096
"""Numbers in a vector of a model of which that is not known yet, at most as a rule."""
_BYTES_IN_BASE64 = 16
"""The same where vectors are sent in base64."""

Named = list[tuple[str, str | list[int]]]
"""Inputs, text or token ids, each with the name of its field."""
Inputs = list[list[int]] | list[str | list[int]]
"""What is embedded: token ids, or texts where another server runs the model."""


async def start_embedding(
    serving: ServingContext, record: RequestRecord, request: EmbeddingRequest
) -> tuple[Coroutine[None, None, EmbeddingList], HeldBytes]:
    """Check a request, tokenize its inputs, and take it in; what comes back does the work, and counts its memory.

    Raises:
        ApiError: It cannot be answered as asked, or not now.
    """
    model = await serving.wait_for_model(record, request.model, "embed")
    inputs, size = as_list(request.input), model.card.embedding_size
    _check_count(serving, len(inputs), "input")
    if request.dimensions is not None and model.external is None and request.dimensions != size:
        message = (
            f"'dimensions' may only be {size}, the size of {model.name!r}: its vectors are not made to be shortened."
        )
        raise invalid_request(message, "dimensions", "unsupported_value")
    if "" in inputs:
        raise invalid_request("'input' may not hold an empty string.", "input")
    named: Named = [(f"input[{position}]", each) for position, each in enumerate(inputs)]
    batch, tokens = await serving.run(record, lambda: _tokenize(model, named))
    size = request.dimensions or size or _SIZE_UNKNOWN
    as_base64 = request.encoding_format == "base64"
    held = HeldBytes(serving.held, record, len(batch) * size * (_BYTES_IN_BASE64 if as_base64 else _BYTES))
    work = await serving.begin(record, picked(model, batch), prompt_tokens=tokens)

    async def run() -> EmbeddingList:
        vectors = await _embed(record.id, batch, model, work, request.dimensions)
        encoded = await serving.run(record, lambda: [_encode(vector, as_base64) for vector in vectors])
        data = [Embedding(index=i, embedding=each) for i, each in enumerate(encoded)]
        return EmbeddingList(model=model.name, data=data, usage=_usage(work))

    return run(), held


async def start_rerank(
    serving: ServingContext, record: RequestRecord, request: RerankRequest, *, show_documents: bool
) -> Coroutine[None, None, RerankAnswer]:
    """As `start_embedding`, for a query and documents. `show_documents`: texts are sent back where the request does not
    say. Raises as it does."""
    model = await serving.wait_for_model(record, request.model, "score")
    texts, max_tokens = request.texts, request.max_tokens_per_doc
    _check_count(serving, len(texts), "documents")
    queries, documents = [("query", request.query)], [(f"documents[{i}]", text) for i, text in enumerate(texts)]
    batch, tokens = await serving.run(
        record, lambda: _tokenize_sides(model, queries, documents, max_tokens, request.instruction)
    )
    work = await serving.begin(record, picked(model, batch), prompt_tokens=tokens)
    show = show_documents if request.return_documents is None else request.return_documents

    async def run() -> RerankAnswer:
        answers = await _embed(record.id, batch, model, work)
        scores = await serving.run(record, lambda: _scores(model, answers, 1))
        ranked = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: request.top_n]
        return RerankAnswer(
            id=f"rerank-{record.id}",
            model=model.name,
            results=[
                RerankResult(index=i, relevance_score=scores[i], document={"text": texts[i]} if show else UNSET)
                for i in ranked
            ],
            usage=_usage(work),
            meta={"tokens": {"input_tokens": work.usage.prompt_tokens}},
        )

    return run()


async def start_score(
    serving: ServingContext, record: RequestRecord, request: ScoreRequest
) -> Coroutine[None, None, ScoreAnswer]:
    """As `start_embedding`, for pairs of texts. Raises as it does."""
    model = await serving.wait_for_model(record, request.model, "score")
    left, right = request.text_1, request.text_2
    _check_count(serving, len(left), "text_1")
    _check_count(serving, len(right), "text_2")
    firsts = [(f"text_1[{i}]", text) for i, text in enumerate(left)]
    seconds = [(f"text_2[{i}]", text) for i, text in enumerate(right)]
    batch, tokens = await serving.run(
        record, lambda: _tokenize_sides(model, firsts, seconds, instruction=request.instruction)
    )
    work = await serving.begin(record, picked(model, batch), prompt_tokens=tokens)

    async def run() -> ScoreAnswer:
        answers = await _embed(record.id, batch, model, work)
        scores = await serving.run(record, lambda: _scores(model, answers, len(left)))
        return ScoreAnswer(
            id=f"score-{record.id}",
            created=int(SYSTEM_CLOCK.time()),
            model=model.name,
            data=[Score(index=i, score=score) for i, score in enumerate(scores)],
            usage=_usage(work),
        )

    return run()


async def _embed(
    request_id: str, batch: Inputs, model: ReadyModel, work: Work, dimensions: int | None = None
) -> list[bytes]:
    """Vectors of inputs, float32 little-endian, counted to `work`. Raises as `ReplicaClient.embed` and
    `embed_external` do."""
    if model.external is not None:
        return await embed_external(model.external, batch, work, dimensions)
    usage = work.usage
    try:
        assert work.replica_choice is not None, "a replica is chosen when work begins"
        given = [each for each in batch if isinstance(each, list)]
        vectors = await embed_anywhere(
            model.served.replicas, work.replica_choice, request_id, given, model.served.config.failover
        )
    except (RequestRefusedError, ReplicaLostError):
        usage.failed = True
        raise
    except asyncio.CancelledError:  # the engine has been at it: as with an answer, leaving early is not free
        usage.count(prompt=work.prompt_tokens)
        raise
    usage.count(prompt=work.prompt_tokens)
    usage.pending -= 1
    return vectors


def _check_count(serving: ServingContext, count: int, param: str) -> None:
    limit = serving.limits.max_embedding_inputs
    if count > limit:
        raise invalid_request(f"{param!r} has {count} texts; this server takes at most {limit}.", param)


def _tokenize_sides(
    model: ReadyModel,
    left: list[NamedText],
    right: list[NamedText],
    max_tokens: int | None = None,
    instruction: str | None = None,
) -> tuple[Inputs, int]:
    """What the model reads to compare texts, and how many tokens that is: pairs, or each text by itself."""
    if instruction is not None and not model.card.pair_template:
        message = f"The model {model.name!r} takes no 'instruction'."
        raise invalid_request(message, "instruction", "unsupported_parameter")
    if is_cross_encoder(model):
        return tokenize_pairs(model, left, right, max_tokens, instruction)
    return _tokenize(model, [*left, *right], max_tokens)


def _scores(model: ReadyModel, answers: list[bytes], left: int) -> list[float]:
    """Of what the model made of that; the first `left` vectors are those of the left texts."""
    found = [numbers(answer) for answer in answers]
    return pair_scores(found) if is_cross_encoder(model) else vector_scores(found[:left], found[left:])


def _tokenize(model: ReadyModel, named: Named, max_tokens: int | None = None) -> tuple[Inputs, int]:
    """Token ids of inputs, and how many there are; those after the first are cut to `max_tokens`."""
    empty = next((where for where, given in named if not given), None)
    if empty is not None:
        raise invalid_request(f"{empty!r} may not be empty.", empty)
    if model.external is not None:
        return external_inputs(model.external, named, max_tokens)
    batch: list[list[int]] = []
    longest = model.card.max_context_length
    for position, (where, given) in enumerate(named):
        if isinstance(given, str):
            given = model.text.tokenizer.encode(given, add_special_tokens=True)
        if max_tokens is not None and position:
            given = given[:max_tokens]
        if len(given) > longest:
            raise ContextLengthError(longest, len(given), 0, where)
        check_token_ids(given, model, where)
        batch.append(given)
    return batch, sum(map(len, batch))


def _encode(vector: bytes, as_base64: bool) -> list[float] | str:
    return base64.b64encode(vector).decode("ascii") if as_base64 else list(numbers(vector))


def _usage(work: Work) -> EmbeddingUsage:
    tokens = work.usage.prompt_tokens
    return EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens)
