"""Sampling parameters of one request: plain token-id terms, text never enters."""

from __future__ import annotations

import msgspec

MAX_INT = 2**31 - 1  # counts are no larger


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling of one request.

    Token `t` of choice `i` is drawn with the counter-based generator keyed by `(seed of choice i, t's position)`,
    so that it depends on this request alone.
    """

    seed: int  # 64-bit seed; the gateway draws one where the client gave none, so that a request can be replayed

    temperature: float = 1.0  # 0 is greedy: the most likely token, ties to the lowest id

    top_k: int = 0  # keep the k most likely tokens; 0 keeps all

    top_p: float = 1.0  # keep the smallest set of most likely tokens whose probability reaches this

    min_p: float = 0.0  # keep tokens at least this share as likely as the most likely one

    repetition_penalty: float = 1.0
    """Divide (positive) or multiply (negative) the logits of tokens in prompt or output (CTRL, Keskar 2019)."""

    presence_penalty: float = 0.0  # subtract once from the logit of each token already in the output

    frequency_penalty: float = 0.0  # subtract once for each time a token is already in the output

    logit_bias: dict[int, float] = {}  # added to the logits of these token ids

    allowed_token_ids: list[int] | None = None  # only these token ids may be drawn

    bad_words: list[list[int]] = []
    """Token sequences that may not appear: the last token is masked when the ones before it are the tail."""

    stop_token_ids: list[int] = []
    """Token ids that end the answer (the model's end tokens included unless `ignore_eos`). Kept in the output's
    token ids; the gateway shows no text for them."""

    min_tokens: int = 0  # stop tokens are masked until this many tokens are out

    max_tokens: int = 16  # tokens of output at most, per choice

    logprobs: int | None = None  # report the log-probability of each drawn token and of this many most likely ones

    prompt_logprobs: int | None = None  # the same for the tokens of the prompt (from the second on)

    n: int = 1  # choices: answers drawn from one prompt. Their blocks are shared until they differ.


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index`: splitmix64 of the request's seed and the index, in [0, 2**63)."""
    mask = (1 << 64) - 1
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) >> 1
