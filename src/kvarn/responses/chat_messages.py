"""Items of a response as the messages of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvarn.responses.hosted import Approvals, ModelView, view_of
from kvarn.responses.tools import arguments_of, chat_name
from kvarn.tools.conversation import chat_call
from kvarn.wire.openai.responses.hosted import HOSTED_CALLS
from kvarn.wire.openai.responses.items import CALLS, OUTPUTS, StoredItem, summary_of

SUMMARY = "Summary of the conversation so far:"
"""Begins what the model is shown of a compaction."""


def chat_messages(instructions: str | None, items: Sequence[StoredItem]) -> list[dict[str, Any]]:
    """Items as the messages of a chat. Calls join the assistant's message before them, what the model thought joins the
    one after it; the result of a call that is no longer there is left out. Calls that ran here bring their results."""
    writer = _MessageWriter(instructions)
    approvals = Approvals(items)
    for item in items:
        if item["type"] == "mcp_approval_response":
            if (view := approvals.denied_by(item)) is not None:
                writer.add_hosted(view)
        else:
            writer.add(item)
    return writer.messages


class _MessageWriter:
    def __init__(self, instructions: str | None) -> None:
        self.messages: list[dict[str, Any]] = []
        if instructions is not None:
            self.messages.append({"role": "system", "content": instructions})
        self._calls: set[str] = set()
        self._thoughts: list[str] = []
        self._round: tuple[str, dict[str, Any]] | None = None
        """The turn of the model whose hosted calls came last, and its message."""

    def add(self, item: StoredItem) -> None:
        kind, messages = item["type"], self.messages
        if kind == "reasoning":
            self._thoughts += [part["text"] for part in item.get("content") or item["summary"]]
            return
        if kind == "message":
            messages.append({"role": item["role"], "content": _content(item["content"])})
        elif kind == "compaction":
            summary = f"{SUMMARY}\n\n{summary_of(item['encrypted_content'])}"
            messages.append({"role": "user", "content": summary})
        elif kind in CALLS:
            self._calls.add(item["call_id"])
            self._assistant().setdefault("tool_calls", []).append(_chat_call(item))
        elif kind in OUTPUTS and item["call_id"] in self._calls:
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": _content(item["output"])})
        elif kind in HOSTED_CALLS:
            self.add_hosted(view_of(item))
            return
        if messages:
            self._join_thoughts(messages[-1])

    def add_hosted(self, view: ModelView) -> None:
        """A call that ran here, and its result. Calls of one turn of the model are in one message of it."""
        if self._round is None or self._round[0] != view.turn or self.messages[-1]["role"] != "tool":
            self._round = view.turn, self._assistant()
        assistant = self._round[1]
        self._join_thoughts(assistant)
        assistant.setdefault("tool_calls", []).append(chat_call(view.call_id, view.name, view.arguments))
        self.messages.append({"role": "tool", "tool_call_id": view.call_id, "content": view.output})

    def _assistant(self) -> dict[str, Any]:
        """The assistant's message that a call belongs to."""
        if self._thoughts or not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": None})
        return self.messages[-1]

    def _join_thoughts(self, message: dict[str, Any]) -> None:
        if self._thoughts and message["role"] == "assistant":
            message["reasoning_content"] = "\n".join(self._thoughts)
        self._thoughts = []


def _content(content: str | list[dict[str, Any]]) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    texts: list[str] = [part.get("text", part.get("refusal", "")) for part in content]
    if len(texts) > 1:
        return [{"type": "text", "text": text} for text in texts]
    return texts[0] if texts else ""


def _chat_call(item: StoredItem) -> dict[str, Any]:
    arguments = item["arguments"] if item["type"] == "function_call" else arguments_of(item["input"])
    return chat_call(item["call_id"], chat_name(item["name"], item.get("namespace")), arguments)
