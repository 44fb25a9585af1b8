"""Chats whose tools run here: the client gets one answer, and what was run for it beside."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from kvarn.answers.chat.answer import ChatRun
from kvarn.answers.chat.operation import start_chat
from kvarn.answers.chat.stored import keep_completion
from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import Deltas
from kvarn.catalog.client_left import cancel_with_client
from kvarn.retrieval.quoting import make_boundary
from kvarn.tools.items import begun_item, result_fields
from kvarn.tools.loop import CallEnded, ToolLoop
from kvarn.tools.quotations import Quotations
from kvarn.tools.registry import OfferedTools, ToolsContext
from kvarn.wire.openai.chat.messages import Message
from kvarn.wire.openai.chat.request import (
    ChatCompletionRequest,
    FunctionReference,
    HostedChoice,
    NamedToolChoice,
    Tool,
)
from kvarn.wire.openai.errors import invalid_request


async def start_tool_chat(serving: ToolsContext, record: RequestRecord, request: ChatCompletionRequest) -> ChatRun:
    """Begin the answer to a chat, some of whose tools may run here. Raises as `start_chat` does, and as the providers
    of its tools."""
    if not request.hosted_tools:
        return await start_chat(serving, record, request)
    if request.store:
        await serving.storage_quota.check(record, "store", "send 'store': false")
    offered = await _open(serving, record, request)
    loop = loop_of(serving, record, _with_functions(request, offered), offered)
    chat = await loop.start()
    keep = None
    if request.store:
        keep = lambda answer: keep_completion(serving, record, request, answer, chat.held.size // 2)  # noqa: E731
    return replace(chat, request=request, deltas=answer_deltas(loop), usage=lambda: loop.usage, store=keep)


def loop_of(
    serving: ToolsContext, record: RequestRecord, request: ChatCompletionRequest, offered: OfferedTools
) -> ToolLoop:
    async def chat_with(extra: Sequence[Message]) -> ChatCompletionRequest:
        return request.model_copy(update={"messages": [*request.messages, *extra]})

    return ToolLoop(
        serving=serving,
        record=record,
        offered=offered,
        chat_with=chat_with,
        quotations=Quotations(make_boundary(record.principal.cache_salt.encode(), record.id)),
        answer_id=record.id,
        max_output_tokens=request.max_completion_tokens or request.max_tokens,
    )


async def answer_deltas(loop: ToolLoop, between: str = "\n\n") -> Deltas:
    """The turns as the deltas of one answer: texts follow one another, with `between` between them, and calls are told
    once they have run."""
    texts, offset, is_new_turn = list[str](), 0, False
    async with aclosing(loop.steps()) as steps:
        async for step in steps:
            if isinstance(step, ChoiceDelta):
                if is_new_turn and step.text:
                    offset = sum(map(len, texts))
                    if offset:
                        offset += len(between)
                        step.text = between + step.text
                        if step.parts is not None:
                            step.parts.insert(0, between)
                    is_new_turn = False
                texts.append(step.text)
                step.annotations = _chat_annotations(step.annotations or (), offset) or None
                yield step
            elif isinstance(step, CallEnded):
                item = {"id": step.begun.call.id, **begun_item(step.begun), **result_fields(step)}
                is_new_turn = True
                yield ChoiceDelta(0, executions=[item])


async def _open(serving: ToolsContext, record: RequestRecord, request: ChatCompletionRequest) -> OfferedTools:
    if (request.n or 1) > 1:
        raise invalid_request("'n' must be 1 where tools run on the server.", "n")
    taken = {tool.function.name: "a function of 'tools'" for tool in request.function_tools}
    entries = [(where, tool.entry) for where, tool in request.hosted_tools]
    opening = serving.tools.open(serving.tools.context(serving, record), entries, taken)
    offered = await cancel_with_client(opening, record.reply.client_left)
    check_no_approval(offered, "tools", "ask `/v1/responses`, or set 'require_approval' to 'never'")
    return offered


def check_no_approval(offered: OfferedTools, param: str, instead: str) -> None:
    """Refuse tools whose calls would wait for an approval, which this API has no words for. Raises `ApiError`: 400."""
    waiting = [each.tool.definition.name for each in offered if each.tool.needs_approval]
    if waiting:
        message = f"Calls of {waiting[0]!r} need approval, which cannot be given here: {instead}."
        raise invalid_request(message, param, "approval_needed")


def _with_functions(request: ChatCompletionRequest, offered: OfferedTools) -> ChatCompletionRequest:
    hosted = [Tool.model_validate(each) for each in offered.chat_tools]
    changes: dict[str, Any] = {"tools": [*request.function_tools, *hosted] or None, "store": None}
    if isinstance(request.tool_choice, HostedChoice):
        names = offered.chosen(request.tool_choice.model_dump())
        if not names:
            message = f"'tool_choice' asks for a tool of type {request.tool_choice.type[:40]!r}, and none is offered."
            raise invalid_request(message, "tool_choice")
        one = NamedToolChoice(type="function", function=FunctionReference(name=names[0]))
        changes["tool_choice"] = one if len(names) == 1 else "required"
    elif changes["tools"] is None:
        changes["tool_choice"] = None
    return request.model_copy(update=changes)


def _chat_annotations(found: Sequence[dict[str, Any]], offset: int) -> list[dict[str, Any]]:
    """Annotations in the shape of chats, which have the fields under the type. `offset`: characters before the turn."""
    shown = []
    for each in found:
        fields = {name: value for name, value in each.items() if name != "type"}
        fields |= {name: fields[name] + offset for name in ("index", "start_index", "end_index") if name in fields}
        shown.append({"type": each["type"], each["type"]: fields})
    return shown
