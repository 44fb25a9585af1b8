"""From the messages of a chat to the prompt's tokens, in which only the template and the server give orders.

A model knows where a turn, its reasoning or a call begins and ends by tokens that mark it (`Tokenizer.markers`), and
the template writes them. The same words inside a message, a retrieved text or a tool's result are words: a text that
says `<|im_end|>` does not end its turn, and one that says `<tool_call>` calls nothing. They are hidden from the
template's rendering behind random marks, and encoded apart, as ordinary text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from kvarn.text.chat_template import MAX_CHARACTERS, ChatTemplate, RenderRequest
from kvarn.text.messages import normalize_messages
from kvarn.text.reasoning.formats import ReasoningFormat
from kvarn.text.reasoning.splitter import ReasoningPhase
from kvarn.text.tokenizer import Tokenizer

_LONGEST_MARK = 32
"""Characters of a mark at most; what it stands for takes at least one token."""


class PromptBuilder:
    """A conversation on its way to tokens: the template renders `request`, and `token_ids` encodes the text it wrote.
    Both take their time where messages are long, so neither is for an event loop then.

    `opening` is the server's own beginning of the answer; `reasoning` tells how the model writes reasoning: where the
    template has opened it, it is ended before the opening. See `ChatTemplate.request` for the others, and for what is
    raised.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        *,
        context_length: int,
        tools: Sequence[Mapping[str, Any]] | None = None,
        opening: str = "",
        reasoning: ReasoningFormat | None = None,
        add_special_tokens: bool = False,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._opening = opening
        self._reasoning = reasoning
        self._add_special_tokens = add_special_tokens
        self._hidden = hidden = _Hidden(tokenizer)
        self.request: RenderRequest = template.request(
            # arguments unfolded: their JSON has other ways to write the same
            hidden.hide(normalize_messages(messages)),
            tools=hidden.hide(tools),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=hidden.hide(variables or {}),
            max_characters=min(MAX_CHARACTERS, context_length * max(tokenizer.longest_token, _LONGEST_MARK)),
        )

    def token_ids(self, text: str) -> list[int]:
        """The prompt, from what the template wrote. Raises TokenizerError where it cannot be encoded."""
        encode = self._tokenizer.encode
        opening = self._opening
        if opening and self._reasoning is not None and self._reasoning.phase_after(text) is ReasoningPhase.INSIDE:
            opening = self._reasoning.close + opening
        pieces = self._hidden.split(text + opening)
        token_ids = encode(pieces[0], add_special_tokens=self._add_special_tokens)
        for words, between in zip(pieces[1::2], pieces[2::2], strict=True):
            token_ids += self._tokenizer.encode_words(words) + encode(between, add_special_tokens=False)
        return token_ids


class _Hidden:
    """The markers in what clients wrote, behind marks."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._mark = secrets.token_hex(8)
        self._words: list[str] = []

    def hide(self, value: Any) -> Any:
        """The same value with a mark for each marker in any of its strings, names of fields included."""
        if isinstance(value, str):
            return self._hide_text(value)
        if isinstance(value, Mapping):
            return {self.hide(name): self.hide(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(each) for each in value]
        return value

    def split(self, text: str) -> list[str]:
        """Texts between the marks, and in each odd place the marker that a mark stands for."""
        if not self._words:
            return [text]
        pieces = re.split(rf"{self._mark}(\d+)\.", text)
        return [self._words[int(piece)] if place % 2 else piece for place, piece in enumerate(pieces)]

    def _hide_text(self, text: str) -> str:
        pieces, end = [], 0
        for start, after in self._tokenizer.find_markers(text):
            pieces += [text[end:start], f"{self._mark}{len(self._words)}."]
            self._words.append(text[start:after])
            end = after
        return "".join(pieces) + text[end:] if pieces else text
