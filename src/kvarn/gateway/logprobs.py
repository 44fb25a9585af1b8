"""Log-probabilities in the three shapes clients know: chat's, completions', and vLLM's for prompts."""

from __future__ import annotations

from collections.abc import Sequence

from kvarn.text.tokenizer import Tokenizer
from kvarn.wire.messages import PositionLogprobs, TokenLogprob
from kvarn.wire.openai.chat_answer import TokenLogprobs, TopLogprob
from kvarn.wire.openai.completions import CompletionLogprobs
from kvarn.wire.openai.usage import PromptLogprob, PromptLogprobs


def chat_logprobs(positions: Sequence[PositionLogprobs], top: int, tokenizer: Tokenizer) -> list[TokenLogprobs]:
    """OpenAI's chat shape: `top` alternatives at each position."""
    return [
        TokenLogprobs(
            token=tokenizer.token_text(position.chosen.token_id),
            logprob=position.chosen.logprob,
            bytes=list(tokenizer.token_bytes(position.chosen.token_id)),
            top_logprobs=[_top(each, tokenizer) for each in position.top[:top]],
        )
        for position in positions
    ]


def _top(entry: TokenLogprob, tokenizer: Tokenizer) -> TopLogprob:
    return TopLogprob(
        token=tokenizer.token_text(entry.token_id),
        logprob=entry.logprob,
        bytes=list(tokenizer.token_bytes(entry.token_id)),
    )


def completion_logprobs(
    positions: Sequence[PositionLogprobs | None],
    token_ids: Sequence[int],
    offsets: Sequence[int],
    top: int,
    tokenizer: Tokenizer,
) -> CompletionLogprobs:
    """The older shape of text completions: parallel lists.

    Args:
        positions: One for each token; None where nothing is known (a prompt's first token).
        token_ids: The tokens themselves.
        offsets: For each token the characters of the choice's text before it.
        top: Alternatives at each position; 0 gives null.
        tokenizer: Of the model.
    """
    return CompletionLogprobs(
        tokens=[tokenizer.token_text(token_id) for token_id in token_ids],
        token_logprobs=[None if position is None else position.chosen.logprob for position in positions],
        top_logprobs=[_top_by_text(position, top, tokenizer) for position in positions] if top else None,
        text_offset=list(offsets),
    )


def _top_by_text(position: PositionLogprobs | None, top: int, tokenizer: Tokenizer) -> dict[str, float] | None:
    """The alternatives and the drawn token; of two tokens that read alike the likelier stands."""
    if position is None:
        return None
    by_text: dict[str, float] = {}
    for entry in [*position.top[:top], position.chosen]:
        by_text.setdefault(tokenizer.token_text(entry.token_id), entry.logprob)
    return by_text


def prompt_logprobs(positions: Sequence[PositionLogprobs | None], tokenizer: Tokenizer) -> PromptLogprobs:
    """VLLM's shape for prompts: each position maps token ids to what is known of them."""
    return [None if position is None else _by_id(position, tokenizer) for position in positions]


def _by_id(position: PositionLogprobs, tokenizer: Tokenizer) -> dict[str, PromptLogprob]:
    return {
        str(entry.token_id): PromptLogprob(
            logprob=entry.logprob, rank=entry.rank, decoded_token=tokenizer.token_text(entry.token_id)
        )
        for entry in [position.chosen, *position.top]
    }
