"""Answers of the fake model, one after the other, with calls of tools among them."""

from __future__ import annotations

import json
from typing import Any

from fake_replica import answer_text
from kvarn.wire.messages import Submit


def called(tool: str, **arguments: Any) -> str:
    """A call as the models of the tests write it."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def script(server: Any, *texts: str) -> None:
    """Let each turn say the next of these texts; the last one again and again. The context has room for results."""
    server.widen(32_768)
    left = list(texts)

    def answer(request: Submit, index: int) -> list[int]:
        return answer_text(left.pop(0) if len(left) > 1 else left[0])

    server.chat.answer = answer
