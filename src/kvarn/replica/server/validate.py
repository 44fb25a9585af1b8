"""The last look at a request before it shares a batch with others: one bad number must not end the whole engine."""

from __future__ import annotations

import math
from collections.abc import Iterable

from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams


def find_problem(request: Submit, vocab_size: int) -> str | None:
    """What makes a request impossible for a model of so many token ids; None where all is well.

    The gateway checks what clients send and answers in their terms; this guards the engine against any sender.
    """
    sampling = request.sampling
    if _outside(request.prompt_token_ids, vocab_size):
        return f"prompt_token_ids must be in 0 to {vocab_size - 1}"
    if sampling.allowed_token_ids is not None and _none_inside(sampling.allowed_token_ids, vocab_size):
        return f"allowed_token_ids must name at least one token in 0 to {vocab_size - 1}"
    if any(not word for word in sampling.bad_words):
        return "bad_words must not hold an empty sequence"
    return _number_problem(sampling)


def find_embed_problem(inputs: list[list[int]], vocab_size: int) -> str | None:
    """The same for inputs to embed."""
    if any(not tokens for tokens in inputs):
        return "an input is empty: send at least one token"
    if any(_outside(tokens, vocab_size) for tokens in inputs):
        return f"token ids must be in 0 to {vocab_size - 1}"
    return None


def _number_problem(sampling: SamplingParams) -> str | None:
    floats = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }
    for name, value in floats.items():
        if not math.isfinite(value):
            return f"{name} must be a finite number"
    if any(not math.isfinite(bias) for bias in sampling.logit_bias.values()):
        return "logit_bias must hold finite numbers"
    limits = (
        (sampling.temperature >= 0, "temperature must not be negative"),
        (0 <= sampling.top_p <= 1, "top_p must be in 0 to 1"),
        (0 <= sampling.min_p <= 1, "min_p must be in 0 to 1"),
        (sampling.repetition_penalty > 0, "repetition_penalty must be greater than 0"),
        (sampling.top_k >= 0, "top_k must not be negative"),
        (0 <= sampling.seed < 1 << 64, "seed must be in 0 to 2**64 - 1"),
        ((sampling.logprobs or 0) >= 0, "logprobs must not be negative"),
        ((sampling.prompt_logprobs or 0) >= 0, "prompt_logprobs must not be negative"),
    )
    return next((text for holds, text in limits if not holds), None)


def _outside(tokens: list[int], vocab_size: int) -> bool:
    return bool(tokens) and not (min(tokens) >= 0 and max(tokens) < vocab_size)


def _none_inside(tokens: Iterable[int], vocab_size: int) -> bool:
    return not any(0 <= token < vocab_size for token in tokens)
