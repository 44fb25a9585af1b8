"""Relevance of texts: by the angle of their vectors (a bi-encoder), or as a cross-encoder reads each pair."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from operator import mul

from kvarn.answers.generation import check_token_ids
from kvarn.catalog.models import ReadyModel
from kvarn.text.rerank_template import QWEN3, RerankTemplate
from kvarn.wire.openai.errors import ContextLengthError, invalid_request

Vector = tuple[float, ...]
NamedText = tuple[str, str]  # a text after the name of its field


def is_cross_encoder(model: ReadyModel) -> bool:
    return model.card.kind == "score"


def pair_up(left: Sequence[NamedText], right: Sequence[NamedText]) -> list[tuple[NamedText, NamedText]]:
    """One text with each of several, or as many with as many."""
    return list(zip(list(left) * len(right) if len(left) == 1 else left, right, strict=True))


def tokenize_pairs(
    model: ReadyModel,
    left: Sequence[NamedText],
    right: Sequence[NamedText],
    max_tokens: int | None = None,
    instruction: str | None = None,
) -> tuple[list[list[int]], int]:
    """Token ids of pairs, and how many there are; a right text is cut to `max_tokens`. `instruction`: what a model that
    takes one shall judge by.

    Raises:
        ApiError: A text is empty, or a pair is longer than the model reads.
    """
    batch: list[list[int]] = []
    tokenizer = model.text.tokenizer
    takes_template = model.card.pair_template == QWEN3
    encode = RerankTemplate(tokenizer, instruction).encode if takes_template else tokenizer.encode_pair
    longest = model.card.max_context_length
    for (left_name, first), (right_name, second) in pair_up(left, right):
        empty = left_name if not first else right_name if not second else None
        if empty is not None:
            raise invalid_request(f"{empty!r} may not be empty.", empty)
        ids = encode(first, second, max_tokens)
        if len(ids) > longest:
            raise ContextLengthError(longest, len(ids), 0, right_name)
        check_token_ids(ids, model, right_name)
        batch.append(ids)
    return batch, sum(map(len, batch))


def pair_scores(logits: Sequence[Vector]) -> list[float]:
    """Scores from 0 to 1 of a cross-encoder's answers."""
    return [_sigmoid(logit) for (logit,) in logits]


def vector_scores(left: Sequence[Vector], right: Sequence[Vector]) -> list[float]:
    """Cosines of one vector with each of several, or of as many with as many."""
    firsts = list(left) * len(right) if len(left) == 1 else left
    return [cosine(*pair) for pair in zip(firsts, right, strict=True)]


def cosine(left: Vector, right: Vector) -> float:
    """Cosine of the angle between two vectors, from -1 to 1; 0 where one of them is all zeros."""
    size = math.hypot(*left) * math.hypot(*right)
    return max(-1.0, min(1.0, sum(map(mul, left, right)) / size)) if size else 0.0


def numbers(vector: bytes) -> Vector:
    """Numbers of float32 bytes, little-endian."""
    return struct.unpack(f"<{len(vector) // 4}f", vector)


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
