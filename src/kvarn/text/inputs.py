"""The inputs of completion and embedding requests as lists of token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvarn.text.errors import TokenizerError
from kvarn.text.tokenizer import Tokenizer
from kvarn.wire.openai.errors import invalid_request

if TYPE_CHECKING:
    from kvarn.config.schema import GatewayConfig
    from kvarn.wire.openai.completions import CompletionRequest
    from kvarn.wire.openai.embeddings import EmbeddingRequest

TextOrTokens = str | list[str] | list[int] | list[list[int]]


def completion_prompts(request: CompletionRequest, tokenizer: Tokenizer, limits: GatewayConfig) -> list[list[int]]:
    """The token ids of each prompt.

    Raises:
        ApiError: 400: too many prompts, or ids outside the vocabulary.
    """
    special = True if request.add_special_tokens is None else request.add_special_tokens
    return _token_ids(request.prompt, "prompt", tokenizer, limits.max_prompts, special)


def embedding_inputs(
    request: EmbeddingRequest, tokenizer: Tokenizer, limits: GatewayConfig, *, context_length: int
) -> list[list[int]]:
    """The token ids of each input of an embedding request.

    Raises:
        ApiError: 400: too many inputs, an empty one, one above `context_length`, or ids outside the vocabulary.
    """
    inputs = _token_ids(request.input, "input", tokenizer, limits.max_embedding_inputs, True)
    for index, ids in enumerate(inputs):
        if not ids:
            raise invalid_request(f"Input {index} has no tokens: write something.", "input")
        if len(ids) > context_length:
            raise invalid_request(
                f"This model takes {context_length} tokens, and input {index} has {len(ids)}: shorten or split it.",
                "input",
                "context_length_exceeded",
            )
    return inputs


def _token_ids(value: TextOrTokens, param: str, tokenizer: Tokenizer, most: int, special: bool) -> list[list[int]]:
    inputs: list[str] | list[list[int]]
    if isinstance(value, str) or isinstance(value[0], int):
        inputs = [value]
    else:
        inputs = value
    if len(inputs) > most:
        raise invalid_request(f"{param!r} holds {len(inputs)} inputs: at most {most} are allowed.", param)
    if isinstance(inputs[0], str):
        try:
            return tokenizer.encode_batch(inputs, add_special_tokens=special)
        except TokenizerError as error:
            raise invalid_request(str(error), param) from None
    for ids in inputs:
        if min(ids) < 0 or max(ids) >= tokenizer.vocab_size:
            raise invalid_request(
                f"{param!r} holds an id that is no token: this model's go from 0 to {tokenizer.vocab_size - 1}.",
                param,
            )
    return inputs
