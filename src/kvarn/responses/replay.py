"""The stream of a response that has ended, once more."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from kvarn.answers.choice import ChoiceDelta
from kvarn.responses.tools import arguments_in_pieces, chat_name
from kvarn.responses.writer import Cuts, ResponseWriter
from kvarn.text.reasoning.splitter import Reasoning
from kvarn.wire.openai.chat.answer import FunctionCallDelta, ToolCallDelta
from kvarn.wire.openai.responses.answer import Response, StreamEvent
from kvarn.wire.openai.responses.hosted import HOSTED_PREFIXES
from kvarn.wire.openai.responses.items import StoredItem


def replay(response: Response, first_item: int, cuts: Cuts) -> Iterator[StreamEvent]:
    """The events of a response as they were sent the first time. All name the model and the tier that answered, also
    those from before these were known."""
    writer = ResponseWriter(unwritten(response), first_item)
    if response.background:
        yield from writer.queue()
    yield from writer.begin()
    for index, (item, lengths) in enumerate(zip(response.output, cuts, strict=True)):
        if item["type"] == "message":
            if item["content"][0]["type"] == "refusal":
                yield from writer.refuse(item["content"][0]["refusal"])
                continue
            if not lengths:
                yield from writer.open_message()
            deltas = _message_again(item, lengths)
        elif item["type"] in HOSTED_PREFIXES:
            yield from writer.begin_call(item)
            yield from writer.end_call({})
            continue
        elif item["type"] == "reasoning":
            deltas = _reasoning_again(item, lengths)
        else:
            deltas = _call_again(item, lengths, index)
        for delta in deltas:
            yield from writer.take(delta)
        yield from writer.close_item(item["status"])
    writer.response = response
    yield writer.last()


def unwritten(response: Response) -> Response:
    return replace(
        response,
        status="queued" if response.background else "in_progress",
        completed_at=None,
        error=None,
        incomplete_details=None,
        output=[],
        usage=msgspec.UNSET,
        warnings=msgspec.UNSET,
    )


def _message_again(item: StoredItem, lengths: list[list[int]]) -> Iterator[ChoiceDelta]:
    part = item["content"][0]
    logprobs = part["logprobs"]
    start = first = 0
    for characters, tokens in lengths:
        yield ChoiceDelta(0, part["text"][start : start + characters], logprobs=logprobs[first : first + tokens])
        start, first = start + characters, first + tokens
    if part["annotations"]:
        yield ChoiceDelta(0, annotations=part["annotations"])


def _reasoning_again(item: StoredItem, lengths: list[list[int]]) -> Iterator[ChoiceDelta]:
    text = item["content"][0]["text"]
    start = 0
    for characters, _ in lengths:
        yield ChoiceDelta(0, parts=[Reasoning(text[start : start + characters])])
        start += characters


def _call_again(item: StoredItem, lengths: list[list[int]], index: int) -> Iterator[ChoiceDelta]:
    function = FunctionCallDelta(name=chat_name(item["name"], item.get("namespace")), arguments="")
    yield ChoiceDelta(0, parts=[ToolCallDelta(index=index, id=item["call_id"], type="function", function=function)])
    is_custom = item["type"] == "custom_tool_call"
    pieces = _cut(item["input" if is_custom else "arguments"], lengths)
    for arguments in arguments_in_pieces(pieces) if is_custom else pieces:
        yield ChoiceDelta(0, parts=[ToolCallDelta(index=index, function=FunctionCallDelta(arguments=arguments))])


def _cut(text: str, lengths: list[list[int]]) -> list[str]:
    pieces, start = [], 0
    for characters, _ in lengths:
        pieces.append(text[start : start + characters])
        start += characters
    return pieces
