"""From the messages and tools of a chat to the prompt's tokens."""

from __future__ import annotations

import re
from typing import Any

from kvarn.answers.context import ServingContext
from kvarn.answers.record import RequestRecord
from kvarn.catalog.client_left import cancel_with_client
from kvarn.catalog.models import ModelText, ReadyModel
from kvarn.text.reasoning.formats import ReasoningFormat
from kvarn.text.reasoning.splitter import ReasoningPhase
from kvarn.wire.openai.chat.request import ChatCompletionRequest


def opening_of(request: ChatCompletionRequest, model: ReadyModel) -> str:
    """The beginning of a forced call, with which the prompt ends, for the model to go on with; empty where none is
    forced."""
    use = request.tool_use
    return model.text.tool_format.opening(use.certain_name) if use is not None and use.forced else ""


async def render_chat(
    serving: ServingContext, record: RequestRecord, request: ChatCompletionRequest, model: ReadyModel
) -> list[int]:
    variables = request.chat_template_kwargs or {}
    if request.reasoning_effort is not None:
        variables = _reasoning_variables(request, record, model.text) | variables
    rendered = model.render(
        serving.text,
        record.principal.organization_id,
        record.body_bytes,
        lambda: _shown_messages(request.plain_messages, model.text, continues=request.continue_final_message),
        note=record.timeline.mark,
        tools=request.active_tools,
        opening=opening_of(request, model),
        reasoning=model.text.reasoning_format,
        add_special_tokens=bool(request.add_special_tokens),
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        variables=variables,
    )
    return await cancel_with_client(rendered, record.reply.client_left)


def phase_after_prompt(request: ChatCompletionRequest, model: ReadyModel, prompt: list[int]) -> ReasoningPhase:
    """The phase in which an answer to this prompt begins; without reasoning it is that after it."""
    kind = model.text.reasoning_format
    if kind is None:
        return ReasoningPhase.AFTER
    begun = opening_of(request, model)
    if request.continue_final_message:
        content = request.plain_messages[-1].get("content") or ""
        begun = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
    return kind.phase_after_prompt(prompt, model.text.tokenizer, begun)


def _shown_messages(messages: list[dict[str, Any]], text: ModelText, *, continues: bool) -> list[dict[str, Any]]:
    """The messages with what the model's template calls otherwise than OpenAI. The last one stays as it is where the
    answer `continues` it."""
    shown_id = text.tool_format.shown_id
    thinks = "message.thinking" in text.chat_template.source
    for message in messages[: -1 if continues else None]:
        if message["role"] == "assistant" and text.reasoning_format is not None:
            _split_reasoning(message, text.reasoning_format)
    for message in messages:
        if "tool_call_id" in message:
            message["tool_call_id"] = shown_id(message["tool_call_id"])
        calls = message.get("tool_calls") or ()
        for call in calls:
            call["id"] = shown_id(call["id"])
        if thinks and message.get("reasoning_content") and not (calls and message.get("content")):
            message["thinking"] = message["reasoning_content"]  # gpt-oss refuses it beside the content of a call
    return messages


def _split_reasoning(message: dict[str, Any], kind: ReasoningFormat) -> None:
    """Part the reasoning from the content of an earlier answer that has both, as templates do: they would look for its
    end in vain, since what spells it out there is words (`kvarn.text.prompt`)."""
    content = message.get("content")
    if not isinstance(content, str) or message.get("reasoning_content") or not kind.tagged:
        return
    head, end, rest = content.rpartition(kind.ends[0])
    if end:
        reasoning = head.split(kind.ends[0])[0].rpartition(kind.starts[0])[2]
        message["reasoning_content"], message["content"] = reasoning.strip("\n"), rest.lstrip("\n")


def _reasoning_variables(request: ChatCompletionRequest, record: RequestRecord, text: ModelText) -> dict[str, Any]:
    """Variables of the template for `reasoning_effort`: its level, and whether to reason at all. Only what the template
    knows is set; where it knows nothing of it the client is warned."""
    effort = request.reasoning_effort
    reasons = effort != "none"
    meaning = {"reasoning_effort": effort, "enable_thinking": reasons, "thinking": reasons}
    source = text.chat_template.source
    known = {name: value for name, value in meaning.items() if re.search(rf"\b{name}\b", source)}
    if not known and reasons:
        record.warn("ignored the reasoning effort, this model has no such levels")
    return known
