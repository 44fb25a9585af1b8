"""Embedding texts, and ranking and scoring them."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Coroutine

from msgspec import UNSET

from kvarn.answers.context import ServingContext
from kvarn.answers.encoders.relevance import (
    NamedText,
    is_cross_encoder,
    numbers,
    pair_scores,
    tokenize_pairs,
    vector_scores,
)
from kvarn.answers.generator import EmbeddingInputs, NamedInputs
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.lifecycle import take_in
from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import Prompt, Turn
from kvarn.catalog.models import ReadyModel
from kvarn.clock import SYSTEM_CLOCK
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
from kvarn.wire.openai.errors import invalid_request

_BYTES = 64  # memory of a number of an answer: as float32, as Python's object, and as JSON
_SIZE_UNKNOWN = 4096  # numbers in a vector of a model of which that is not known yet, at most as a rule
_BYTES_IN_BASE64 = 16  # memory of a number where vectors are sent in base64


async def start_embedding(
    serving: ServingContext, record: RequestRecord, request: EmbeddingRequest
) -> tuple[Coroutine[None, None, EmbeddingList], HeldBytes]:
    """Check a request, tokenize its inputs, and take it in; what comes back does the work, and counts its memory.
    Raises `ApiError`."""
    record.end_user = request.user or ""
    model = await serving.catalog.wait_for(record, request.model, "embed")
    inputs, size = as_list(request.input), model.card.embedding_size
    _check_count(serving, len(inputs), "input")
    if request.dimensions is not None and model.served.config.external is None and request.dimensions != size:
        message = (
            f"'dimensions' may only be {size}, the size of {model.name!r}: its vectors are not made to be shortened."
        )
        raise invalid_request(message, "dimensions", "unsupported_value")
    if "" in inputs:
        raise invalid_request("'input' may not hold an empty string.", "input")
    named: NamedInputs = [(f"input[{position}]", each) for position, each in enumerate(inputs)]
    batch, tokens = await serving.run(record, lambda: _inputs(serving, model, named))
    size = request.dimensions or size or _SIZE_UNKNOWN
    as_base64 = request.encoding_format == "base64"
    held = HeldBytes(serving.held, record, len(batch) * size * (_BYTES_IN_BASE64 if as_base64 else _BYTES))
    turn, model = await _take_in(serving, record, model, batch, tokens)

    async def run() -> EmbeddingList:
        vectors = await serving.steps.generator_of(model).embed(turn, model, batch, request.dimensions)
        encoded = await serving.run(record, lambda: [_encode(vector, as_base64) for vector in vectors])
        data = [Embedding(index=i, embedding=each) for i, each in enumerate(encoded)]
        return EmbeddingList(model=model.name, data=data, usage=_usage(turn))

    return run(), held


async def start_rerank(
    serving: ServingContext, record: RequestRecord, request: RerankRequest, *, show_documents: bool
) -> Coroutine[None, None, RerankAnswer]:
    """Begin to rank documents for a query; raises as `start_embedding`. `show_documents`: texts are sent back where the
    request does not say."""
    texts = request.texts
    documents = [(f"documents[{i}]", text) for i, text in enumerate(texts)]
    query = [("query", request.query)]
    turn, model, compare = await _start_scores(serving, record, request, query, documents, request.max_tokens_per_doc)
    show = show_documents if request.return_documents is None else request.return_documents

    async def run() -> RerankAnswer:
        scores = await compare()
        ranked = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: request.top_n]
        return RerankAnswer(
            id=f"rerank-{record.id}",
            model=model.name,
            results=[
                RerankResult(index=i, relevance_score=scores[i], document={"text": texts[i]} if show else UNSET)
                for i in ranked
            ],
            usage=_usage(turn),
            meta={"tokens": {"input_tokens": turn.usage.prompt_tokens}},
        )

    return run()


async def start_score(
    serving: ServingContext, record: RequestRecord, request: ScoreRequest
) -> Coroutine[None, None, ScoreAnswer]:
    firsts = [(f"text_1[{i}]", text) for i, text in enumerate(request.text_1)]
    seconds = [(f"text_2[{i}]", text) for i, text in enumerate(request.text_2)]
    turn, model, compare = await _start_scores(serving, record, request, firsts, seconds)

    async def run() -> ScoreAnswer:
        return ScoreAnswer(
            id=f"score-{record.id}",
            created=int(SYSTEM_CLOCK.time()),
            model=model.name,
            data=[Score(index=i, score=score) for i, score in enumerate(await compare())],
            usage=_usage(turn),
        )

    return run()


async def _start_scores(
    serving: ServingContext,
    record: RequestRecord,
    request: RerankRequest | ScoreRequest,
    left: list[NamedText],
    right: list[NamedText],
    max_tokens: int | None = None,
) -> tuple[Turn, ReadyModel, Callable[[], Awaitable[list[float]]]]:
    """Take in a comparison of texts, by pairs or each text by itself; what comes back gives the scores."""
    model = await serving.catalog.wait_for(record, request.model, "score")
    for side in (left, right):
        _check_count(serving, len(side), side[0][0].partition("[")[0])
    if request.instruction is not None and not model.card.pair_template:
        message = f"The model {model.name!r} takes no 'instruction'."
        raise invalid_request(message, "instruction", "unsupported_parameter")
    in_pairs = is_cross_encoder(model)

    def tokenize() -> tuple[EmbeddingInputs, int]:
        if in_pairs:
            return tokenize_pairs(model, left, right, max_tokens, request.instruction)
        return _inputs(serving, model, [*left, *right], max_tokens)

    batch, tokens = await serving.run(record, tokenize)
    turn, model = await _take_in(serving, record, model, batch, tokens)

    async def compare() -> list[float]:
        answers = await serving.steps.generator_of(model).embed(turn, model, batch, None)

        def scores() -> list[float]:
            found = [numbers(answer) for answer in answers]
            return pair_scores(found) if in_pairs else vector_scores(found[: len(left)], found[len(left) :])

        return await serving.run(record, scores)

    return turn, model, compare


def _check_count(serving: ServingContext, count: int, param: str) -> None:
    limit = serving.gateway_config.max_embedding_inputs
    if count > limit:
        raise invalid_request(f"{param!r} has {count} texts; this server takes at most {limit}.", param)


def _inputs(
    serving: ServingContext, model: ReadyModel, named: NamedInputs, max_tokens: int | None = None
) -> tuple[EmbeddingInputs, int]:
    """Inputs as they are embedded and their number of tokens; those after the first are cut to `max_tokens`."""
    empty = next((where for where, given in named if not given), None)
    if empty is not None:
        raise invalid_request(f"{empty!r} may not be empty.", empty)
    return serving.steps.generator_of(model).embedding_inputs(model, named, max_tokens)


async def _take_in(
    serving: ServingContext, record: RequestRecord, model: ReadyModel, batch: EmbeddingInputs, tokens: int
) -> tuple[Turn, ReadyModel]:
    picked = serving.steps.generator_of(model).pick_embedder(model, batch)
    return await take_in(serving, record, Prompt(model=picked, tokens=tokens)), picked


def _encode(vector: bytes, as_base64: bool) -> list[float] | str:
    return base64.b64encode(vector).decode("ascii") if as_base64 else list(numbers(vector))


def _usage(turn: Turn) -> EmbeddingUsage:
    tokens = turn.usage.prompt_tokens
    return EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens)
