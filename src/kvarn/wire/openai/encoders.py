"""Embeddings, reranking (`/v1/rerank` in the shape of Jina and Cohere, `/v1/score` in vLLM's) and moderation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from kvarn.wire.openai.common import (
    FIELDS_OF_OTHER_SERVERS,
    LenientModel,
    Refused,
    RequestModel,
    Strings,
    TextOrTokens,
    disagreement,
    only,
    refused,
)


class EmbeddingRequest(LenientModel):
    unsupported_fields = FIELDS_OF_OTHER_SERVERS

    model: str
    input: TextOrTokens
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)  # only the model's own size: the vectors are not shortened
    user: str | None = None


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """One vector: numbers, or base64 of float32 little-endian bytes."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: str = "list"


class PoolingRequest(EmbeddingRequest):
    """The body of a pooling request (vLLM's): what an embedding model makes of its input."""

    task: Annotated[Literal["embed"] | None, only("embed")] = None
    normalize: Annotated[bool | None, only(True, why="Vectors are as the model's checkpoint says.")] = None
    messages: Annotated[None, refused("send 'input'")] = None


class Pooled(msgspec.Struct, frozen=True, kw_only=True):
    """One vector: numbers, or base64 of float32 little-endian bytes."""

    index: int
    data: list[float] | str
    object: str = "pooling"


class PooledList(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    data: list[Pooled]
    usage: EmbeddingUsage
    object: str = "list"


class ClassifyRequest(LenientModel):
    model: str
    input: TextOrTokens | None = None
    messages: list[Any] | None = None


_NO_TRUNCATION = "'truncate_prompt_tokens' is not supported: shorten the texts, or give 'max_tokens_per_doc'."


class Document(RequestModel):
    text: str


class RerankRequest(LenientModel):
    model: str
    query: str = Field(min_length=1)
    documents: Annotated[list[str | Document], Field(min_length=1, fail_fast=True)]
    top_n: int | None = Field(None, ge=1)  # results at most. Default: all documents.
    return_documents: bool | None = None  # send the texts back. Default: as the dialect of the path does.
    max_tokens_per_doc: int | None = Field(None, ge=1)
    """Tokens of a document that are looked at. Default: all; one longer than the model's context is refused."""
    instruction: str | None = Field(None, min_length=1)
    """Meaning of relevance, for models that take an instruction (Qwen3-Reranker). Default: that of a web search."""
    user: str | None = None

    rank_fields: Annotated[None, refused("send texts")] = None
    max_chunks_per_doc: Annotated[None, refused("give 'max_tokens_per_doc'")] = None
    truncate_prompt_tokens: Annotated[None, refused(_NO_TRUNCATION)] = None

    @property
    def texts(self) -> list[str]:
        return [each if isinstance(each, str) else each.text for each in self.documents]


class RerankResult(msgspec.Struct, frozen=True, kw_only=True):
    """A document's place; `index` is its number in the request."""

    index: int
    relevance_score: float
    document: dict[str, str] | UnsetType = UNSET  # its text


class RerankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Documents by relevance, the most relevant first; of equal ones the earlier."""

    id: str
    model: str
    results: list[RerankResult]
    usage: EmbeddingUsage
    meta: dict[str, dict[str, int]]  # for Cohere's clients: tokens.input_tokens
    object: str = "list"


OneOrMore = Annotated[
    Strings, BeforeValidator(lambda value: [value] if isinstance(value, str) else value, str | list[str])
]


class ScoreRequest(LenientModel):
    """The body of a score request: one text against one or many, or as many pairs."""

    model: str
    text_1: OneOrMore
    text_2: OneOrMore
    instruction: str | None = Field(None, min_length=1)  # meaning of relevance; see `RerankRequest`
    user: str | None = None

    truncate_prompt_tokens: Refused = None
    encoding_format: Annotated[None, refused("scores are numbers")] = None

    @model_validator(mode="after")
    def _texts_pair(self) -> ScoreRequest:
        left, right = self.text_1, self.text_2
        for name, texts in (("text_1", left), ("text_2", right)):
            if not texts or "" in texts:
                raise disagreement(f"{name!r} must hold texts that are not empty.", name)
        if len(left) not in (1, len(right)):
            raise disagreement(
                f"'text_1' has {len(left)} texts and 'text_2' has {len(right)}: give one, or as many.", "text_1"
            )
        return self


class Score(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    score: float
    object: str = "score"


class ScoreAnswer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    data: list[Score]
    usage: EmbeddingUsage
    object: str = "list"


class ModerationPart(RequestModel):
    type: Annotated[Literal["text"], only("text", why="Only content parts of type 'text' are moderated.")]
    text: str


def _form_of(value: object) -> str | None:
    if isinstance(value, list) and value:
        forms = (("texts", str), ("parts", dict))
        return next((form for form, kind in forms if all(isinstance(item, kind) for item in value)), None)
    return "text" if isinstance(value, str) else None


class ModerationRequest(LenientModel):
    input: Annotated[
        Annotated[str, Tag("text")]
        | Annotated[list[str], Tag("texts")]
        | Annotated[list[ModerationPart], Field(fail_fast=True), Tag("parts")],
        Discriminator(
            _form_of,
            custom_error_type="input_form",
            custom_error_message="it must be a string, a list of strings or a list of text parts, and not empty",
        ),
    ]  # a text, several, or the parts of one
    model: str | None = None  # OpenAI's names stand for whatever moderates here

    @property
    def texts(self) -> list[str]:
        if isinstance(self.input, str):
            return [self.input]
        parts = [part.text for part in self.input if isinstance(part, ModerationPart)]
        return ["\n".join(parts)] if parts else [text for text in self.input if isinstance(text, str)]


class ModerationResult(msgspec.Struct, frozen=True, kw_only=True):
    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[str]]


class ModerationList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a moderation request: one result for each text, in order."""

    id: str
    model: str
    results: list[ModerationResult]
    usage: EmbeddingUsage | UnsetType = UNSET  # tokens looked at (an extension)
