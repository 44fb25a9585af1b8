"""Edits of a conversation before the model sees it: what is left out of it, and how much that was."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kvarn.wire.anthropic.blocks import ThinkingBlock, ToolResultBlock, ToolUseBlock
from kvarn.wire.anthropic.context_management import ClearThinking, ClearToolUses, Edit
from kvarn.wire.anthropic.messages import AssistantMessage, Message, SystemMessage, UserMessage

CLEARED = "[The result of this call was left out: the conversation is long.]"


@dataclass(frozen=True, slots=True)
class Cleared:
    messages: list[Message]
    count: int  # turns whose thinking, or calls whose results, were left out; 0: nothing was


def needs_tokens(edit: Edit) -> bool:
    """Whether it depends on the length of the prompt."""
    return isinstance(edit, ClearToolUses) and (edit.trigger.type == "input_tokens" or edit.clear_at_least is not None)


def apply_edit(edit: Edit, messages: Sequence[Message], tokens: int) -> Cleared:
    """Make an edit. `tokens` is the prompt's length, where the edit depends on it. `clear_at_least` is the caller's to
    check, who can count."""
    if isinstance(edit, ClearThinking):
        return _clear_thinking(messages, edit.kept_turns)
    if isinstance(edit, ClearToolUses):
        return _clear_tool_uses(edit, messages, tokens)
    return Cleared(list(messages), 0)


def _clear_thinking(messages: Sequence[Message], kept: int | None) -> Cleared:
    thinking = [number for number, message in enumerate(messages) if _thinks(message)]
    cleared = set() if kept is None else set(thinking[: max(0, len(thinking) - kept)])
    return Cleared([_without_thinking(each) if i in cleared else each for i, each in enumerate(messages)], len(cleared))


def _thinks(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and any(isinstance(each, ThinkingBlock) for each in message.content)


def _without_thinking(message: Message) -> Message:
    return message.model_copy(
        update={"content": [block for block in message.content if not isinstance(block, ThinkingBlock)]}
    )


def _clear_tool_uses(edit: ClearToolUses, messages: Sequence[Message], tokens: int) -> Cleared:
    calls = [
        block
        for message in messages
        if isinstance(message, AssistantMessage)
        for block in message.content
        if isinstance(block, ToolUseBlock)
    ]
    if (len(calls) if edit.trigger.type == "tool_uses" else tokens) < edit.trigger.value:
        return Cleared(list(messages), 0)
    old = calls[: max(0, len(calls) - edit.keep.value)]
    cleared = {call.id for call in old if call.name not in (edit.exclude_tools or ())}
    inputs = edit.clear_tool_inputs or ()
    emptied = {call.id for call in old if call.id in cleared and (inputs is True or call.name in _names(inputs))}
    found = 0

    def shortened(block: object) -> object:
        nonlocal found
        if isinstance(block, ToolResultBlock) and block.tool_use_id in cleared and block.content != CLEARED:
            found += 1
            return block.model_copy(update={"content": CLEARED})
        if isinstance(block, ToolUseBlock) and block.id in emptied:
            return block.model_copy(update={"input": {}})
        return block

    return Cleared([_mapped(message, shortened) for message in messages], found)


def _names(inputs: bool | Collection[str]) -> Collection[str]:
    return () if isinstance(inputs, bool) else inputs


def _mapped(message: Message, change: Callable[[object], object]) -> Message:
    if isinstance(message.content, str) or isinstance(message, SystemMessage):
        return message
    assert isinstance(message, UserMessage | AssistantMessage)
    return message.model_copy(update={"content": [change(block) for block in message.content]})
