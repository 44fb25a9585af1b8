"""Golden prompts: what replicas are asked again and again."""

from __future__ import annotations

import random

import msgspec

_LENGTH = 56
"""Tokens of a built-in prompt: three whole blocks of the KV cache, which a second run finds there, and some more."""


class GoldenPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One of them, as the engine takes it."""

    name: str
    token_ids: list[int]


def built_in_prompts(count: int, vocab_size: int, max_context_length: int, max_tokens: int) -> list[GoldenPrompt]:
    """Prompts for a model of which nothing else is known: fixed token ids from all over its vocabulary.

    Text it is not; but each weight that computes text computes these too, and their log-probabilities show it.
    """
    length = max(1, min(_LENGTH, max_context_length - max_tokens))
    source = random.Random(20)
    return [
        GoldenPrompt(name=f"built-in-{number}", token_ids=[source.randrange(vocab_size) for _ in range(length)])
        for number in range(count)
    ]
