"""Items: what the input and the output of a response, and a conversation, are made of.

Clients send them in several forms (`InputItem`); kept and sent back they have one, OpenAI's resource, as plain data
(`StoredItem`): every item has an id, content is a list of parts.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from kvarn.wire.openai.common import (
    Metadata,
    RequestModel,
    only,
    refused,
    validation_error,
    warn_ignored,
)
from kvarn.wire.openai.responses.hosted import HOSTED_PREFIXES, HostedItem, KeptHostedItem, hosted_fields
from kvarn.wire.openai.responses.item_ids import ItemId, OptionalId

_BEGIN = "kvarn-summary-1."


def encoded_summary(text: str) -> str:
    """A summary for a client to keep. It is no secret: it tells the client's own conversation."""
    return _BEGIN + base64.urlsafe_b64encode(text.encode()).decode()


def summary_of(content: str) -> str:
    """The summary that a client sends back. Raises `PydanticCustomError`: it is none of ours."""
    try:
        if content.startswith(_BEGIN):
            return base64.b64decode(content.removeprefix(_BEGIN), altchars=b"-_", validate=True).decode()
    except ValueError:
        pass
    raise validation_error("not_ours", "this server has not made it; only its own summaries can be read")


StoredItem = dict[str, Any]  # an item as it is kept: valid as OpenAI's `ItemResource` and as its `ConversationItem`

CallId = Annotated[str, Field(min_length=1, max_length=64)]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputText(RequestModel):
    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: dict[str, Any] | None = None
    """A hint: prompts are cached wherever they have been seen before."""


class ImagePart(RequestModel):
    """A picture or a file that a tool gave: the model is told that it was there. A client sends it again with each
    later request, so that to refuse it would end its session."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["input_image", "input_file"]

    @model_validator(mode="after")
    def _warn(self, info: ValidationInfo) -> ImagePart:
        warn_ignored(info, f"ignored 'output.{self.type}' of a call, models read text only")
        return self

    @property
    def text(self) -> str:
        return f"[{self.type.removeprefix('input_')}: this model reads text only]"


class OutputText(RequestModel):
    """A text the model wrote. Annotations and log-probabilities are sent back by clients that echo an answer; they are
    not shown to the model and not kept."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class Refusal(RequestModel):
    type: Literal["refusal"]
    refusal: str


Part = Annotated[InputText | OutputText | Refusal, Field(discriminator="type")]
Parts = Annotated[list[Part], Field(fail_fast=True, max_length=1024)]
ResultParts = Annotated[
    list[Annotated[InputText | ImagePart, Field(discriminator="type")]], Field(fail_fast=True, max_length=1024)
]


class MessageItem(RequestModel):
    """Something said: by the user, by the model in an earlier turn, or as an instruction."""

    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Parts
    id: OptionalId = None
    status: ItemStatus | None = None
    phase: Literal["commentary", "final_answer"] | None = None  # a hint for models that think aloud


_Caller = Annotated[dict[str, Any] | None, only({"type": "direct"}, why="Calls are made by the model itself.")]


class _Call(RequestModel):
    call_id: CallId
    name: str
    id: OptionalId = None
    status: ItemStatus | None = None
    namespace: str | None = None  # of the function
    caller: _Caller = None


class FunctionCallItem(_Call):
    type: Literal["function_call"]
    arguments: str


class CustomToolCallItem(_Call):
    """A call the model made of a tool whose input is plain text."""

    type: Literal["custom_tool_call"]
    input: str


class _CallOutput(RequestModel):
    call_id: CallId
    output: str | ResultParts
    id: OptionalId = None
    status: ItemStatus | None = None
    name: str | None = None
    namespace: str | None = None
    caller: _Caller = None


class FunctionCallOutputItem(_CallOutput):
    type: Literal["function_call_output"]


class CustomToolCallOutputItem(_CallOutput):
    type: Literal["custom_tool_call_output"]


def _check_summary(value: str) -> str:
    summary_of(value)
    return value


class CompactionItem(RequestModel):
    """Summary of the conversation before it, made by `/v1/responses/compact`."""

    type: Literal["compaction"]
    encrypted_content: Annotated[str, AfterValidator(_check_summary)]
    id: OptionalId = None


class ItemReference(RequestModel):
    """An item that the server has kept, by its id."""

    type: Literal["item_reference"]
    id: ItemId


class ReasoningText(RequestModel):
    """A piece of what a model thought, or of a summary of it."""

    type: Literal["summary_text", "reasoning_text"]
    text: str


class ReasoningItem(RequestModel):
    """Reasoning of the model in an earlier turn, which the model sees again if its chat template renders it."""

    type: Literal["reasoning"]
    id: OptionalId = None
    summary: Annotated[list[ReasoningText], Field(fail_fast=True)] = Field(default_factory=list)
    content: Annotated[list[ReasoningText], Field(fail_fast=True)] | None = None
    encrypted_content: Annotated[None, refused("this server has no key to it")] = None
    status: ItemStatus | None = None


def _name_the_type(value: object) -> object:
    # OpenAI lets `type` be left out of messages and of references.
    if isinstance(value, dict) and value.get("type") is None and ("role" in value or "id" in value):
        return {**value, "type": "message" if "role" in value else "item_reference"}
    return value


KeptItem = (
    MessageItem
    | FunctionCallItem
    | FunctionCallOutputItem
    | CustomToolCallItem
    | CustomToolCallOutputItem
    | ReasoningItem
    | CompactionItem
    | KeptHostedItem
)
AnyItem = KeptItem | ItemReference
InputItem = Annotated[Annotated[AnyItem, Field(discriminator="type")], BeforeValidator(_name_the_type)]
InputItems = Annotated[list[InputItem], Field(fail_fast=True)]

PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
    "compaction": "cmp_",
    **HOSTED_PREFIXES,
}
CALLS = frozenset({"function_call", "custom_tool_call"})
OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})


def stored_item(item: KeptItem, new_id: Callable[[str], str]) -> StoredItem:
    """An item as it is kept. `new_id` makes an id from its prefix where the client gave none."""
    kept: StoredItem = {"id": item.id or new_id(PREFIXES[item.type]), "type": item.type}
    if isinstance(item, MessageItem):
        return kept | {"status": item.status or "completed", "role": item.role, "content": _parts(item)}
    if isinstance(item, CompactionItem):
        return kept | {"encrypted_content": item.encrypted_content}
    if isinstance(item, HostedItem):
        return kept | hosted_fields(item)
    if isinstance(item, FunctionCallItem | CustomToolCallItem):
        said = {"arguments": item.arguments} if isinstance(item, FunctionCallItem) else {"input": item.input}
        named = {"namespace": item.namespace} if item.namespace else {}
        kept |= {"call_id": item.call_id, "name": item.name, **said, **named}
    elif isinstance(item, FunctionCallOutputItem | CustomToolCallOutputItem):
        output = (
            item.output if isinstance(item.output, str) else [_text("input_text", each.text) for each in item.output]
        )
        kept |= {"call_id": item.call_id, "output": output}
    else:
        kept |= {"summary": [_text("summary_text", each.text) for each in item.summary]}
        if item.content is not None:
            kept |= {"content": [_text("reasoning_text", each.text) for each in item.content]}
    return kept | {"status": item.status or "completed"}


def user_message(text: str, item_id: str) -> StoredItem:
    """The item that an input of plain text stands for."""
    return {
        "id": item_id,
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [_text("input_text", text)],
    }


def output_text(
    text: str, logprobs: list[Any] | None = None, annotations: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """A part of what the model says."""
    return {"type": "output_text", "text": text, "annotations": annotations or [], "logprobs": logprobs or []}


def reasoning_text(text: str) -> dict[str, Any]:
    """A part of what the model thinks."""
    return _text("reasoning_text", text)


def _parts(item: MessageItem) -> list[dict[str, Any]]:
    parts = [item.content] if isinstance(item.content, str) else item.content
    return [_part(part, item.role) for part in parts]


def _part(part: str | InputText | OutputText | Refusal, role: str) -> dict[str, Any]:
    if isinstance(part, Refusal):
        return {"type": "refusal", "refusal": part.refusal}
    text = part if isinstance(part, str) else part.text
    return output_text(text) if role == "assistant" else _text("input_text", text)


def _text(kind: str, text: str) -> dict[str, Any]:
    return {"type": kind, "text": text}


MAX_NEW_ITEMS = 20  # items that one request may add

NewItems = Annotated[list[InputItem], Field(fail_fast=True, max_length=MAX_NEW_ITEMS)]


class CreateConversationRequest(RequestModel):
    items: NewItems | None = None
    metadata: Metadata | None = None


class UpdateConversationRequest(RequestModel):
    metadata: Metadata | None  # replaces what was there


class CreateItemsRequest(RequestModel):
    items: NewItems


class ConversationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created_at: int
    metadata: dict[str, str]
    object: str = "conversation"
