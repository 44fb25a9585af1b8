"""From the messages of a chat to the prompt's tokens, in which only the template and the server give orders.

A model knows where a turn begins and ends by special tokens, and the template writes them. The same words inside a
message, a retrieved text or a tool's result are words: a text that says `<|im_end|>` does not end its turn. They are
hidden from the template's rendering behind marks nobody can guess, and encoded apart, as ordinary text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from kvarn.text.chat_template import ChatTemplate
from kvarn.text.messages import normalize_messages
from kvarn.text.tokenizer import Tokenizer


def chat_token_ids(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    opening: str = "",
    add_special_tokens: bool = False,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """The prompt of a conversation.

    Args:
        template: The model's.
        tokenizer: The model's.
        messages: As OpenAI writes them.
        tools: As OpenAI writes them.
        opening: The server's own beginning of the answer.
        add_special_tokens: Put around the whole what the tokenizer puts around a text.
        add_generation_prompt: See `ChatTemplate.render`.
        continue_final_message: See there.
        variables: More variables of the template.

    Raises:
        ChatTemplateError: The template refuses or cannot render these messages.
        TokenizerError: The text cannot be encoded.
    """
    hidden = _Hidden(tokenizer.special_pattern)
    text = template.render(
        hidden.hide(normalize_messages(messages)),  # arguments unfolded: their JSON has other ways to write the same
        tools=hidden.hide(tools),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        **hidden.hide(variables or {}),
    )
    pieces = hidden.split(text + opening)
    token_ids = tokenizer.encode(pieces[0], add_special_tokens=add_special_tokens)
    for words, between in zip(pieces[1::2], pieces[2::2], strict=True):
        token_ids += tokenizer.encode_words(words) + tokenizer.encode(between, add_special_tokens=False)
    return token_ids


class _Hidden:
    """The special tokens in what clients wrote, behind marks."""

    def __init__(self, pattern: re.Pattern[str] | None) -> None:
        self._pattern = pattern
        self._mark = secrets.token_hex(8)
        self._words: list[str] = []

    def hide(self, value: Any) -> Any:
        """The same value with a mark for each special token in any of its strings, names of fields included."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self._pattern.sub(self._hide_one, value)
        if isinstance(value, Mapping):
            return {self.hide(name): self.hide(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(each) for each in value]
        return value

    def split(self, text: str) -> list[str]:
        """What lies between the marks, and in each odd place the special token that a mark stands for."""
        if not self._words:
            return [text]
        pieces = re.split(rf"{self._mark}(\d+)\.", text)
        return [self._words[int(piece)] if place % 2 else piece for place, piece in enumerate(pieces)]

    def _hide_one(self, found: re.Match[str]) -> str:
        self._words.append(found.group())
        return f"{self._mark}{len(self._words) - 1}."
