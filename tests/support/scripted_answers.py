"""Answers of the fake model, one after the other, with calls of tools among them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from fake_replica import answer_text
from kvarn.wire.messages import Submit


def called(tool: str, **arguments: Any) -> str:
    """A call as the models of the tests write it."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def cited(prompt: str, number: int = 1) -> str:
    """The mark by which a prompt tells to cite a text."""
    (digits,) = set(re.findall(r"Cite text 1 as \[([0-9a-f]{4})-1\]", prompt))
    return f"[{digits}-{number}]"


def script(server: Any, *texts: str | Callable[[str], str]) -> None:
    """Let each turn say the next of these texts, or what one makes of its prompt; the last one again and again. The
    context has room for results."""
    server.widen(32_768)
    left = list(texts)

    def answer(request: Submit, index: int) -> list[int]:
        text = left.pop(0) if len(left) > 1 else left[0]
        if callable(text):
            text = text(server.served["tiny"].text.tokenizer.decode(request.prompt_token_ids))
        return answer_text(text)

    server.chat.answer = answer
