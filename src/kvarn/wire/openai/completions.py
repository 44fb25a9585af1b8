"""Text completions: `/v1/completions`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field, model_validator

from kvarn.wire.openai.common import SamplingFields, TextOrTokens, disagreement, refused
from kvarn.wire.openai.usage import PromptLogprobs, Usage
from kvarn.wire.sampling import MAX_INT


class CompletionRequest(SamplingFields):
    """The body of a completion request: every field of OpenAI's `CreateCompletionRequest`, and vLLM's extensions."""

    prompt: TextOrTokens  # one prompt or several, as text or as token ids
    best_of: int | None = None  # only as many as `n`: picking the best of more is not supported
    echo: bool | None = None  # begin the answer with the prompt
    logprobs: int | None = Field(None, ge=0, le=MAX_INT)
    max_tokens: int | None = Field(None, ge=0, le=MAX_INT)
    suffix: Annotated[None, refused("this model does not fill in")] = None

    @model_validator(mode="after")
    def _fields_agree(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (1 if self.n is None else self.n):
            raise disagreement("'best_of' may only equal 'n': picking the best of more is not supported.", "best_of")
        if self.max_tokens == 0 and not self.echo:
            raise disagreement("'max_tokens' may be 0 only with 'echo': else there is nothing to answer.", "max_tokens")
        return self


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities in the older shape: parallel lists, one entry a token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | msgspec.Raw | None] | None
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, or more of one in a stream (then `finish_reason` is null until the end)."""

    index: int
    text: str
    finish_reason: Literal["stop", "length", "content_filter"] | None
    logprobs: CompletionLogprobs | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a completion request, and each event of its stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    object: str = "text_completion"
    usage: Usage | UnsetType | None = UNSET
