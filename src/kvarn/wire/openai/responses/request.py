"""The requests of `/v1/responses`.

Every field of OpenAI's `CreateResponse` stands in `ResponseRequest`: honoured, taken as a hint, or refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from kvarn.wire.openai.cache import CacheOptions
from kvarn.wire.openai.chat.request import ReasoningEffort
from kvarn.wire.openai.common import (
    EMPTY_IS_NULL,
    SAMPLING_FIELDS,
    LenientModel,
    Metadata,
    Obfuscation,
    Refused,
    RequestModel,
    disagreement,
    ignored,
    only,
    refused,
)
from kvarn.wire.openai.hosted import HostedTool
from kvarn.wire.openai.responses.items import InputItems
from kvarn.wire.openai.responses.tools import ResponseTool, ToolChoice
from kvarn.wire.openai.sessions import AgentHint, RetentionDirectives

Include = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
"""Values of `include`; those of pictures and computers belong to items that never come."""


class TextFormat(RequestModel):
    """Plain text, any JSON object, or JSON that a schema describes; the other fields belong to that one."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextConfig(RequestModel):
    format: Annotated[TextFormat | None, EMPTY_IS_NULL] = None
    verbosity: Annotated[str | None, ignored("ignored 'text.verbosity', ask for it in the instructions", "medium")] = (
        None
    )


class ConversationId(RequestModel):
    id: str


Summary = Annotated[str | None, ignored("ignored 'reasoning.summary', reasoning is sent as it is")]


class ReasoningConfig(LenientModel):
    effort: Annotated[ReasoningEffort | None, only(*get_args(ReasoningEffort))] = None
    summary: Summary = None
    generate_summary: Summary = None  # its older name


class ContextFields(LenientModel):
    """Fields that make a response's prompt."""

    unsupported_fields = SAMPLING_FIELDS
    fields_that_may_be_empty = frozenset({"input"})

    input: str | InputItems | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationId | None = None
    tools: Annotated[list[ResponseTool], Field(fail_fast=True, max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    """`auto`: where the prompt is too long for the model, its oldest items are left out."""
    reasoning: ReasoningConfig | None = None

    @model_validator(mode="after")
    def _has_something_to_answer(self) -> ContextFields:
        if self.previous_response_id is not None and self.conversation is not None:
            raise disagreement("Give 'previous_response_id' or 'conversation', not both.", "conversation")
        if self.input is None and self.previous_response_id is None and self.conversation is None:
            raise disagreement("Give 'input', 'previous_response_id' or 'conversation'.", "input")
        return self

    @property
    def hosted_tools(self) -> list[tuple[str, HostedTool]]:
        """Tools that the server runs, where it has them, with their places."""
        return [(f"tools[{n}]", tool) for n, tool in enumerate(self.tools or ()) if isinstance(tool, HostedTool)]

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationId) else self.conversation


class TokenCountRequest(ContextFields):
    model: str | None = None  # default: the first served model
    personality: Annotated[None, refused("write it in the instructions")] = None


class CompactRequest(ContextFields):
    """The body of a request to shorten a conversation. What tools and form an answer would have does not matter."""

    model: str
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    client_metadata: dict[str, Any] | None = None
    image: dict[str, Any] | None = None


class StreamOptions(LenientModel):
    include_obfuscation: Obfuscation = None


class ResponseRequest(ContextFields):
    model: str
    store: bool | None = None  # default: true
    background: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: Annotated[list[Include], Field(fail_fast=True)] | None = None
    metadata: Metadata | None = None
    max_output_tokens: int | None = Field(None, ge=16)
    # Checked here too: a response in the background is queued before the model's own limits are looked at.
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_logprobs: int | None = Field(None, ge=0, le=20)
    service_tier: str | None = None

    max_tool_calls: int | None = Field(None, ge=0)  # of tools that the server runs

    # Hints: they may be ignored without harm.
    user: str | None = None
    safety_identifier: str | None = Field(None, max_length=64)
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    agent_hint: AgentHint | None = None
    retention_directives: RetentionDirectives | None = None
    cache: CacheOptions | None = None
    client_metadata: dict[str, Any] | None = None
    image: dict[str, Any] | None = None

    # OpenAI's fields that Kvarn does not serve.
    access_programs: Refused = None
    background_options: Refused = None
    context_management: Annotated[None, refused("use 'truncation'")] = None
    moderation: Refused = None
    prompt: Annotated[None, refused("write it in 'instructions' and 'input'")] = None

    @model_validator(mode="after")
    def _fields_agree(self) -> ResponseRequest:
        if self.background and not self.stored:
            raise disagreement("'background' needs 'store' to be true: there must be something to retrieve.", "store")
        if self.stream_options is not None and not self.stream:
            raise disagreement("'stream_options' is only allowed when 'stream' is true.", "stream_options")
        return self

    @property
    def stored(self) -> bool:
        return self.store is not False

    @property
    def with_logprobs(self) -> bool:
        return "message.output_text.logprobs" in (self.include or ())
