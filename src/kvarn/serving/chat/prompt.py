"""From the messages and tools of a chat to the prompt's tokens."""

from __future__ import annotations

from typing import Any

from kvarn.serving.context import ServingContext
from kvarn.serving.models import ReadyModel
from kvarn.serving.work import RequestRecord
from kvarn.text.tool_calls.formats import ToolFormat
from kvarn.wire.openai.chat.request import ChatCompletionRequest


def opening_of(request: ChatCompletionRequest, model: ReadyModel) -> str:
    """The beginning of a forced call, with which the prompt ends, for the model to go on with; empty where none is
    forced."""
    use = request.tool_use
    return model.text.tool_format.opening(use.certain_name) if use is not None and use.forced else ""


async def render_chat(
    serving: ServingContext, record: RequestRecord, request: ChatCompletionRequest, model: ReadyModel
) -> list[int]:
    """The token ids of a chat. Raises as `ReadyModel.render` does."""
    return await model.render(
        serving.text,
        record.principal.organization_id,
        record.body_bytes,
        lambda: _with_shown_ids(request.plain_messages, model.text.tool_format),
        tools=request.active_tools,
        opening=opening_of(request, model),
        add_special_tokens=bool(request.add_special_tokens),
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        variables=request.chat_template_kwargs,
    )


def _with_shown_ids(messages: list[dict[str, Any]], tool_format: ToolFormat) -> list[dict[str, Any]]:
    for message in messages:
        if "tool_call_id" in message:
            message["tool_call_id"] = tool_format.shown_id(message["tool_call_id"])
        for call in message.get("tool_calls") or ():
            call["id"] = tool_format.shown_id(call["id"])
    return messages
