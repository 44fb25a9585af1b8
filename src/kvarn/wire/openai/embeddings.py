"""Embeddings: `/v1/embeddings`."""

from __future__ import annotations

from typing import Literal

import msgspec
from pydantic import Field

from kvarn.wire.openai.common import FIELDS_OF_OTHER_SERVERS, LenientModel
from kvarn.wire.openai.inputs import TextOrTokens


class EmbeddingRequest(LenientModel):
    """The body of an embedding request."""

    unsupported_fields = FIELDS_OF_OTHER_SERVERS

    model: str
    input: TextOrTokens
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    """Only the model's own size: the vectors are not shortened."""
    user: str | None = None


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """One vector: numbers, or base64 of float32 little-endian bytes."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of an embedding request."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an embedding request."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: str = "list"
