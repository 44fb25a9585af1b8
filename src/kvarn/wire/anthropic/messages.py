"""The requests of `/v1/messages` and `/v1/messages/count_tokens`.

Every field of Anthropic's `MessageCreateParams`, those of the beta too, is honoured, taken as a hint, or refused by
name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, ValidationInfo, model_validator

from kvarn.wire.anthropic.blocks import (
    AssistantBlock,
    CacheControl,
    TextBlocks,
    ToolResultBlock,
    ToolUseBlock,
    UserBlock,
)
from kvarn.wire.anthropic.context_management import ContextManagement
from kvarn.wire.anthropic.hosted import HostedToolResult, HostedToolUse, McpServer
from kvarn.wire.anthropic.tools import ServerTool, ToolChoice, Tools
from kvarn.wire.openai.common import (
    SAMPLING_FIELDS,
    DefaultsModel,
    LenientModel,
    Refused,
    RequestModel,
    Strings,
    disagreement,
    ignored,
    only,
    warn_ignored,
)
from kvarn.wire.openai.sessions import AgentHint

_SHOWN_CHARS = 40


class UserMessage(RequestModel):
    role: Literal["user"]
    content: str | Annotated[list[UserBlock], Field(fail_fast=True)]


class AssistantMessage(RequestModel):
    """Answer of the model in an earlier turn, or, as the last message, the beginning of its answer."""

    role: Literal["assistant"]
    content: str | Annotated[list[AssistantBlock], Field(fail_fast=True)]


class SystemMessage(DefaultsModel):
    """Instructions in the middle of a conversation, or at its end."""

    role: Literal["system"]
    content: str | TextBlocks = ""
    clear_at: Literal["next_user_message", "never"] | None = None
    """`next_user_message`: once a message of the user follows, the model is not shown it any more."""
    output_config: Annotated[
        dict[str, Any] | None, ignored("ignored 'output_config' of a system message, give it with the request")
    ] = None


Message = Annotated[UserMessage | AssistantMessage | SystemMessage, Field(discriminator="role")]
Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1)]


class Thinking(LenientModel):
    """Whether the model shall think before it answers; how much is its own decision."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Annotated[
        int | None, ignored("ignored 'thinking.budget_tokens', the model decides how much it thinks")
    ] = None
    display: Literal["summarized", "omitted", "updates"] | None = None  # whether the thinking is sent: if so, as it is
    block_binding: dict[str, Any] | None = None  # signatures are not checked


class JsonFormat(RequestModel):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


Effort = Literal["low", "medium", "high", "xhigh", "max"]


class OutputConfig(LenientModel):
    effort: Annotated[Effort | None, only(*get_args(Effort))] = None
    format: JsonFormat | None = None
    task_budget: Annotated[
        dict[str, Any] | None, ignored("ignored 'output_config.task_budget', bound the answer with 'max_tokens'")
    ] = None


class Metadata(RequestModel):
    model_config = ConfigDict(extra="ignore")

    user_id: str | None = Field(None, max_length=4096)


class MessagesPrompt(LenientModel):
    """Fields of both operations. To count, only those that become the prompt matter."""

    unsupported_fields = SAMPLING_FIELDS

    model: str
    messages: Messages
    system: str | TextBlocks | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    cache_control: CacheControl | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None  # what `output_config.format` was in the beta
    context_management: ContextManagement | None = None
    mcp_servers: Annotated[list[McpServer], Field(fail_fast=True, max_length=32)] | None = None
    max_tokens: int | None = Field(None, ge=1)
    metadata: Metadata | None = None
    stop_sequences: Strings | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    # Hints: they may be ignored without harm.
    agent_hint: AgentHint | None = None
    speed: Annotated[str | None, ignored("ignored 'speed', there is one", "standard")] = None
    diagnostics: dict[str, Any] | None = None
    fallbacks: Annotated[
        str | list[dict[str, Any]] | None, ignored("ignored 'fallbacks', the operator says which there are", "default")
    ] = None
    fallback_credit_token: str | dict[str, Any] | None = None

    # Anthropic's fields that Kvarn does not serve.
    billing_policy: Annotated[
        dict[str, Any] | None, only({"type": "billing_policy"}, {"type": "billing_policy", "bill_to": "self"})
    ] = None
    compaction: Refused = None
    container: Refused = None
    inference_geo: Refused = None
    thread: Refused = None

    @model_validator(mode="after")
    def _results_belong_to_calls(self) -> MessagesPrompt:
        calls: set[str] = set()
        hosted: set[str] = set()
        for number, message in enumerate(self.messages):
            if isinstance(message.content, str):
                continue
            for index, block in enumerate(message.content):
                if isinstance(block, ToolUseBlock):
                    calls.add(block.id)
                elif isinstance(block, ToolResultBlock) and block.tool_use_id not in calls:
                    where = f"messages[{number}].content[{index}].tool_use_id"
                    shown = block.tool_use_id[:80]
                    raise disagreement(f"{where} is {shown!r}: no message before it has a tool_use of that id.", where)
                elif isinstance(block, HostedToolUse):
                    hosted.add(block.id)
                elif isinstance(block, HostedToolResult) and block.tool_use_id not in hosted:
                    where = f"messages[{number}].content[{index}].tool_use_id"
                    raise disagreement(f"{where} is {block.tool_use_id[:80]!r}: no call before it has that id.", where)
        last = self.messages[-1]
        if isinstance(last, AssistantMessage) and any(isinstance(block, ToolUseBlock) for block in last.content):
            where = f"messages[{len(self.messages) - 1}]"
            raise disagreement(f"{where} ends with a tool_use: give its tool_result in a message after it.", where)
        return self

    @model_validator(mode="after")
    def _says_which_tools_are_not_offered(self, info: ValidationInfo) -> MessagesPrompt:
        for number, tool in enumerate(self.tools or ()):
            if isinstance(tool, ServerTool) and not tool.may_run:
                kind = tool.type[:_SHOWN_CHARS]
                warn_ignored(info, f"ignored the tool 'tools[{number}]', this server runs none of type {kind!a}")
        return self

    @model_validator(mode="after")
    def _has_one_format(self) -> MessagesPrompt:
        if self.output_format is not None and self.output_config is not None and self.output_config.format is not None:
            why = "'output_format' is the older name of 'output_config.format': give one of them."
            raise disagreement(why, "output_format")
        return self

    @property
    def format(self) -> JsonFormat | None:
        return self.output_format if self.output_config is None else self.output_config.format or self.output_format


class MessagesRequest(MessagesPrompt):
    max_tokens: int = Field(ge=1)


class CountTokensRequest(MessagesPrompt):
    """The body of a request to `/v1/messages/count_tokens`."""
