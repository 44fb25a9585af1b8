"""Tokens from text and back: `/tokenize` and `/detokenize`, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import model_validator

from kvarn.wire.openai.chat.messages import Messages, plain_messages
from kvarn.wire.openai.chat.request import TemplateKwargs, Tool, Tools
from kvarn.wire.openai.common import LenientModel, TokenIds, disagreement
from kvarn.wire.sampling import SamplingParams


class TokenizeRequest(LenientModel):
    """Tokenize a prompt, or the chat that `messages` render to."""

    fields_that_may_be_empty = frozenset({"prompt"})  # it has no tokens, or those that the tokenizer adds

    model: str | None = None  # default: the first served model
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    add_special_tokens: bool | None = None
    """Default: true for a prompt, false for messages (the template writes its own)."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: TemplateKwargs | None = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_prompt_and_messages(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise disagreement("Give either 'prompt' or 'messages'.", "prompt")
        return self

    @property
    def active_tools(self) -> list[dict[str, Any]] | None:
        shown = [tool.function.shown for tool in self.tools or () if isinstance(tool, Tool)]
        return [{"type": "function", "function": each} for each in shown] or None

    @property
    def plain_messages(self) -> list[dict[str, Any]]:
        return plain_messages(self.messages or [])


class TokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The token ids, and their texts where asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType | None = UNSET


class RenderedChat(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids and sampling parameters that an engine would get for a chat. A request without a `seed` has 0 here."""

    request_id: str
    model: str
    token_ids: list[int]
    sampling_params: SamplingParams
    stream: bool
    priority: int
    cache_salt: str | None


class DetokenizeRequest(LenientModel):
    """Turn token ids back into text."""

    tokens: TokenIds
    model: str | None = None  # default: the first served model


class DetokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
