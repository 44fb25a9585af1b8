"""Golden prompts: asked of replicas again and again, and of versions that are compared."""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

_LENGTH = 56
"""Tokens of a built-in prompt: three whole blocks of the KV cache, which a second run finds there, and some more."""


class GoldenSetError(Exception):
    """A file of golden prompts cannot be read."""


class GoldenQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a golden set: a chat, or token ids."""

    id: str
    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] | None = None
    prompt_token_ids: list[int] = []
    """Sent as they are, without `messages`."""
    answer: str | None = None
    """The right answer; None: only changes are noticed."""


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


def golden_set_path(model_path: str, configured: str | None) -> Path | None:
    """The file of a model's golden set: what is configured, else that of the packaged model; None where it has none."""
    if configured is not None:
        return Path(configured).expanduser()
    return Path(str(files("kvarn") / "assets" / "golden.jsonl")) if model_path == "kvarn-demo" else None


def read_golden_set(path: Path) -> list[GoldenQuestion]:
    """The questions of a file: JSON Lines of `GoldenQuestion`. Raises `GoldenSetError`, which says which line is
    wrong."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise GoldenSetError(f"the golden prompts cannot be read: {error}; check `golden_prompts`") from None
    questions = []
    for number, line in enumerate(lines, start=1):
        try:
            question = msgspec.json.decode(line, type=GoldenQuestion)
        except msgspec.DecodeError as error:
            raise GoldenSetError(f"line {number} of {path} is no golden prompt: {error}") from None
        if bool(question.messages) == bool(question.prompt_token_ids):
            raise GoldenSetError(f"line {number} of {path} needs either `messages` or `prompt_token_ids`")
        questions.append(question)
    if not questions:
        raise GoldenSetError(f"{path} holds no golden prompts")
    return questions


def spread(questions: Sequence[GoldenQuestion], count: int) -> list[GoldenQuestion]:
    count = min(count, len(questions))
    return [questions[number * len(questions) // count] for number in range(count)]
