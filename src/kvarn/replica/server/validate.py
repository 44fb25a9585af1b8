"""The last look at a request before it shares a batch with others: one bad number must not end the whole engine.

The gateway checks the ranges of what clients send (`kvarn.text.sampling`); here is what depends on the model alone.
"""

from __future__ import annotations

import math

from kvarn.wire.messages import ModelCard, Submit

_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


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
    if not all(math.isfinite(getattr(sampling, name)) for name in _NUMBERS):
        return f"{', '.join(_NUMBERS)} must be finite numbers"
    return None


def find_embed_problem(inputs: list[list[int]], vocab_size: int) -> str | None:
    """The same for inputs to embed."""
    if any(not tokens for tokens in inputs):
        return "an input is empty: send at least one token"
    if any(_any_outside(tokens, vocab_size) for tokens in inputs):
        return f"token ids must be in 0 to {vocab_size - 1}"
    return None


def _any_outside(tokens: list[int], vocab_size: int) -> bool:
    return bool(tokens) and not (min(tokens) >= 0 and max(tokens) < vocab_size)
