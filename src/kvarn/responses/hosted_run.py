"""Responses whose tools run here: the tools are opened, approved calls run, then the loop of turns begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvarn.answers.record import RequestRecord
from kvarn.catalog.client_left import cancel_with_client
from kvarn.responses.background_runs import ResponsesContext
from kvarn.responses.ending import ResponseEnding
from kvarn.responses.fitting import chat_of
from kvarn.responses.hosted import Approvals, ended_fields, quotations_of
from kvarn.responses.request import NO_HOSTED, echoed_tools
from kvarn.responses.run import ResponseRun
from kvarn.responses.tools import offered_tools
from kvarn.responses.turns import ResponseInput
from kvarn.retrieval.quoting import make_boundary
from kvarn.tools.execution import EarlierCalls
from kvarn.tools.items import begun_item
from kvarn.tools.loop import ToolLoop
from kvarn.tools.registry import OfferedTools
from kvarn.wire.openai.chat.messages import Message
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.hosted import HostedTool
from kvarn.wire.openai.responses.items import StoredItem
from kvarn.wire.openai.responses.request import ContextFields, ResponseRequest


def served_tools(serving: ResponsesContext, record: RequestRecord, request: ResponseRequest) -> ResponseRequest:
    """The request without tools of types that are not served, of each of which the client is warned. Raises `ApiError`:
    403, it may not use one."""
    if not request.hosted_tools:
        return request
    served = serving.tools.served(record, [(where, tool.entry) for where, tool in request.hosted_tools])
    types = {entry["type"] for entry in served}
    kept = [tool for tool in request.tools or () if not isinstance(tool, HostedTool) or tool.type in types]
    return request.model_copy(update={"tools": kept})


async def open_tools(serving: ResponsesContext, record: RequestRecord, request: ContextFields) -> OfferedTools:
    """Open a request's tools that run here. Raises `ApiError` as their providers do."""
    if not request.hosted_tools:
        return NO_HOSTED
    taken = {tool.chat_name: tool.label for tool in offered_tools(echoed_tools(request))}
    entries = [(where, tool.entry) for where, tool in request.hosted_tools]
    opening = serving.tools.open(serving.tools.context(serving, record), entries, taken)
    return await cancel_with_client(opening, record.reply.client_left)


async def start_with_tools(
    serving: ResponsesContext,
    record: RequestRecord,
    request: ResponseRequest,
    response_input: ResponseInput,
    ending: ResponseEnding,
    seed: int | None,
) -> ResponseRun:
    """Begin a response. Raises as `start_response` does."""
    offered, items = await open_tools(serving, record, request), list(response_input.context)
    response_id, background = ending.writer.response.id, ending.run is not None
    quotations = quotations_of(items, make_boundary(record.principal.cache_salt.encode(), response_id))
    earlier = await serving.tools.runner.earlier(record, response_id) if background else EarlierCalls()

    async def chat_with(extra: Sequence[Message]) -> ChatCompletionRequest:
        return await chat_of(serving, record, request, items, seed, offered, extra)

    loop = ToolLoop(
        serving=serving,
        record=record,
        offered=offered,
        chat_with=chat_with,
        quotations=quotations,
        answer_id=response_id if background else record.id,
        max_calls=request.max_tool_calls,
        max_output_tokens=request.max_output_tokens,
        earlier=earlier,
        kept=background,
        keeps_approved=request.stored or request.conversation_id is not None,
    )
    if approved := Approvals(items).approved(offered):
        await loop.run_approved(approved)
        items += [begun_item(each.begun) | ended_fields(each, response_id, quotations) for each in loop.early]
    chat = await loop.start()
    opened = [dict(item) for item in offered.items if _is_new(item, items)]
    return ResponseRun(chat, loop.steps(), ending, serving.store.now, loop, opened)


def _is_new(item: Mapping[str, Any], items: Sequence[StoredItem]) -> bool:
    """Whether the conversation does not have it yet: a list of a server's tools is told once, until it changes."""
    names = ("type", "server_label", "tools")
    return all(any(known.get(name) != item.get(name) for name in names) for known in items)
