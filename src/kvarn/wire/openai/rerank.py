"""Reranking and scoring: `/v1/rerank` in the shape of Jina and Cohere, `/v1/score` in vLLM's."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field, model_validator

from kvarn.wire.openai.common import LenientModel, RequestModel, Strings, disagreement, refused
from kvarn.wire.openai.embeddings import EmbeddingUsage

_NO_TRUNCATION = "'truncate_prompt_tokens' is not supported: shorten the texts, or give 'max_tokens_per_doc'."


class Document(RequestModel):
    """A text to be ranked."""

    text: str


class RerankRequest(LenientModel):
    """The body of a rerank request."""

    model: str
    query: str = Field(min_length=1)
    documents: Annotated[list[str | Document], Field(min_length=1, fail_fast=True)]
    top_n: int | None = Field(None, ge=1)
    """Results at most. Default: all documents."""
    return_documents: bool | None = None
    """Send the texts back. Default: as the dialect of the path does."""
    max_tokens_per_doc: int | None = Field(None, ge=1)
    """Tokens of a document that are looked at. Default: all; one longer than the model's context is refused."""
    user: str | None = None

    rank_fields: Annotated[None, refused("'rank_fields' is not supported: send texts.")] = None
    max_chunks_per_doc: Annotated[
        None, refused("'max_chunks_per_doc' is not supported: give 'max_tokens_per_doc'.")
    ] = None
    truncate_prompt_tokens: Annotated[None, refused(_NO_TRUNCATION)] = None

    @property
    def texts(self) -> list[str]:
        """The documents' texts."""
        return [each if isinstance(each, str) else each.text for each in self.documents]


class RerankDocument(msgspec.Struct, frozen=True):
    """A document sent back."""

    text: str


class RerankResult(msgspec.Struct, frozen=True, kw_only=True):
    """A document's place; `index` is its number in the request."""

    index: int
    relevance_score: float
    document: RerankDocument | UnsetType = UNSET


class RerankTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens, in Cohere's shape."""

    input_tokens: int


class RerankMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What Cohere's clients look at."""

    tokens: RerankTokens


class RerankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Documents by relevance, the most relevant first; of equal ones the earlier."""

    id: str
    model: str
    results: list[RerankResult]
    usage: EmbeddingUsage
    meta: RerankMeta
    object: str = "list"


class ScoreRequest(LenientModel):
    """The body of a score request: one text against one or many, or as many pairs."""

    model: str
    text_1: str | Strings
    text_2: str | Strings
    user: str | None = None

    truncate_prompt_tokens: Annotated[None, refused("'truncate_prompt_tokens' is not supported.")] = None
    encoding_format: Annotated[None, refused("'encoding_format' is not supported: scores are numbers.")] = None

    @model_validator(mode="after")
    def _texts_pair(self) -> ScoreRequest:
        left, right = self.left, self.right
        for name, texts in (("text_1", left), ("text_2", right)):
            if not texts or "" in texts:
                raise disagreement(f"{name!r} must hold texts that are not empty.", name)
        if len(left) not in (1, len(right)):
            raise disagreement(
                f"'text_1' has {len(left)} texts and 'text_2' has {len(right)}: give one, or as many.", "text_1"
            )
        return self

    @property
    def left(self) -> list[str]:
        """The texts of `text_1`."""
        return [self.text_1] if isinstance(self.text_1, str) else self.text_1

    @property
    def right(self) -> list[str]:
        """The texts of `text_2`."""
        return [self.text_2] if isinstance(self.text_2, str) else self.text_2


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How near the two texts of a pair are."""

    index: int
    score: float
    object: str = "score"


class ScoreAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The scores in the pairs' order."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: EmbeddingUsage
    object: str = "list"
