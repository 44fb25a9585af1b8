"""The last look at a request before it shares a batch with others: one bad number must not end the whole engine.

The gateway checks what clients send and answers in their terms; this guards the engine against any sender.
"""

from __future__ import annotations

import math

from kvarn.wire.messages import ModelCard, Submit
from kvarn.wire.sampling import SamplingParams

_RANGES = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, math.inf),
    "presence_penalty": (-math.inf, math.inf),
    "frequency_penalty": (-math.inf, math.inf),
    "top_k": (0, math.inf),
    "seed": (0, 2**64 - 1),
    "logprobs": (0, math.inf),
    "prompt_logprobs": (0, math.inf),
}
"""Least and greatest value of each number."""


def find_problem(request: Submit, card: ModelCard) -> str | None:
    """What makes a request impossible for a model; None where all is well."""
    sampling, vocab_size = request.sampling, card.vocab_size
    if request.adapter and request.adapter not in card.adapters:
        return f"adapter {request.adapter!r} is not loaded: this engine has {card.adapters or 'none'}"
    if _any_outside(request.prompt_token_ids, vocab_size):
        return f"prompt_token_ids must be in 0 to {vocab_size - 1}"
    allowed = sampling.allowed_token_ids
    if allowed is not None and not any(0 <= token < vocab_size for token in allowed):
        return f"allowed_token_ids must name at least one token in 0 to {vocab_size - 1}"
    if any(not word for word in sampling.bad_words):
        return "bad_words must not hold an empty sequence"
    if not all(math.isfinite(bias) for bias in sampling.logit_bias.values()):
        return "logit_bias must hold finite numbers"
    return _number_problem(sampling)


def find_embed_problem(inputs: list[list[int]], vocab_size: int) -> str | None:
    """The same for inputs to embed."""
    if any(not tokens for tokens in inputs):
        return "an input is empty: send at least one token"
    if any(_any_outside(tokens, vocab_size) for tokens in inputs):
        return f"token ids must be in 0 to {vocab_size - 1}"
    return None


def _number_problem(sampling: SamplingParams) -> str | None:
    if sampling.repetition_penalty == 0:
        return "repetition_penalty must be greater than 0"
    for name, (least, greatest) in _RANGES.items():
        value = getattr(sampling, name)
        if value is not None and not (math.isfinite(value) and least <= value <= greatest):
            return f"{name} must be finite and in {least:g} to {greatest:g}"
    return None


def _any_outside(tokens: list[int], vocab_size: int) -> bool:
    return bool(tokens) and not (min(tokens) >= 0 and max(tokens) < vocab_size)
