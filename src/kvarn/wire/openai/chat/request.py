"""The request of `/v1/chat/completions`.

Every field of OpenAI's `CreateChatCompletionRequest` stands in `ChatCompletionRequest`: honoured, taken as a hint, or
refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from kvarn.wire.openai.chat.messages import Messages, check_tool_results, plain_messages
from kvarn.wire.openai.chat.response_format import FunctionName, ResponseFormat
from kvarn.wire.openai.common import (
    Metadata,
    Refused,
    RequestModel,
    SamplingFields,
    disagreement,
    ignored,
    only,
    refused,
    validation_error,
)
from kvarn.wire.openai.hosted import HostedTool
from kvarn.wire.sampling import MAX_INT


class FunctionDefinition(RequestModel):
    """A function the model may call; `parameters` is a JSON schema."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # its arguments keep to the schema, whether a call is forced or not

    @property
    def shown(self) -> dict[str, Any]:
        """The fields of it that the model sees."""
        return self.model_dump(exclude_none=True, exclude={"strict"})

    @property
    def required(self) -> tuple[str, ...]:
        """The properties that its schema says arguments must have."""
        named = (self.parameters or {}).get("required")
        return tuple(name for name in named if isinstance(name, str)) if isinstance(named, list) else ()


class Tool(RequestModel):
    type: Annotated[Literal["function"], only("function", why="Only tools of type 'function' are supported.")]
    function: FunctionDefinition


HOSTED_TYPES = ("file_search", "web_search", "code_interpreter", "mcp", "http", "calculator", "clock")
"""Types of tools that the server may run, also with a version behind (`web_search_preview`)."""


class HostedChoice(RequestModel):
    """The tool of the server that shall be called: of a type, of an MCP server any or the one of this name."""

    model_config = ConfigDict(extra="ignore")

    type: str
    server_label: str | None = None
    name: str | None = None


def is_hosted(kind: object) -> bool:
    return isinstance(kind, str) and any(kind == each or kind.startswith(f"{each}_") for each in HOSTED_TYPES)


def _kind_of_tool(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return "hosted" if is_hosted(kind) else "function"


AnyTool = Annotated[
    Annotated[Tool, Tag("function")] | Annotated[HostedTool, Tag("hosted")], Discriminator(_kind_of_tool)
]
Tools = Annotated[list[AnyTool], Field(fail_fast=True, max_length=128)]


class FunctionReference(RequestModel):
    name: str


class NamedToolChoice(RequestModel):
    type: Literal["function"]
    function: FunctionReference


class AllowedTools(RequestModel):
    """Which of the tools may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[Tool], Field(fail_fast=True, min_length=1, max_length=128)]


class AllowedToolsChoice(RequestModel):
    """The model may, or must, call one of some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _kind_of_choice(choice: Any) -> str:
    kind = choice.get("type") if isinstance(choice, dict) else getattr(choice, "type", None)
    return "hosted" if is_hosted(kind) else str(kind)


ToolChoice = Annotated[
    Literal["none", "auto", "required"]
    | Annotated[
        Annotated[NamedToolChoice, Tag("function")]
        | Annotated[AllowedToolsChoice, Tag("allowed_tools")]
        | Annotated[HostedChoice, Tag("hosted")],
        Discriminator(_kind_of_choice),
    ]
    | None,
    only(
        *("none", "auto", "required"),
        types=("function", "allowed_tools", "web_search_preview", "web_search_preview_2025_03_11", *HOSTED_TYPES),
        why="'tool_choice' must be 'none', 'auto', 'required', or an object of type 'function' or 'allowed_tools', or "
        "of the type of a tool that this server runs; custom tools are not supported.",
    ),
]
FunctionCallChoice = Literal["none", "auto"] | FunctionReference


@dataclass(frozen=True, slots=True)
class ToolUse:
    functions: tuple[FunctionDefinition, ...]  # what the model is shown and may call
    forced: bool = False  # it must call one
    named: str | None = None  # it must call this one
    parallel: bool = True  # it may call several at once
    legacy: bool = False  # the client speaks of functions, not of tools

    @property
    def names(self) -> frozenset[str]:
        return frozenset(function.name for function in self.functions)

    @property
    def max_calls(self) -> int | None:
        """Calls in one answer at most; None: any number."""
        return 1 if self.named is not None or not self.parallel else None

    @property
    def certain_name(self) -> str | None:
        """Name of the function that will be called, if the request leaves no choice."""
        return self.named or (self.functions[0].name if len(self.functions) == 1 else None)


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast"]
_TEMPLATE_FIELDS = ("add_generation_prompt", "continue_final_message", "messages", "tools")


def _check_template_kwargs(value: object) -> object:
    taken = [name for name in _TEMPLATE_FIELDS if isinstance(value, dict) and name in value]
    if taken:
        why = f"'chat_template_kwargs' may not hold {taken[0]!r}: it is a field of the request."
        raise validation_error("unsupported_value", why)
    return value


TemplateKwargs = Annotated[dict[str, Any], BeforeValidator(_check_template_kwargs)]


class ChatCompletionRequest(SamplingFields):
    fields_that_may_be_empty = SamplingFields.fields_that_may_be_empty | {"web_search_options"}

    messages: Messages
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_INT)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_INT)
    tools: Tools | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[FunctionDefinition], Field(fail_fast=True, min_length=1, max_length=128)] | None = None
    """Form of `tools` before 2023-11."""
    function_call: FunctionCallChoice | None = None  # what `tool_choice` was before 2023-11
    response_format: Annotated[
        ResponseFormat | None,
        only(
            types=("text", "json_object", "json_schema", "structural_tag"),
            why="'response_format' must be an object of type 'text', 'json_object' or 'json_schema'.",
        ),
    ] = None
    modalities: Annotated[list[str] | None, only(["text"])] = None
    reasoning_effort: Annotated[ReasoningEffort | None, only(*get_args(ReasoningEffort))] = None
    metadata: Metadata | None = None
    store: bool | None = None  # keep the answer, to be read again by its id
    service_tier: Annotated[ServiceTier | None, only(*get_args(ServiceTier))] = None

    # Hints: they may be ignored without harm.
    safety_identifier: str | None = Field(None, max_length=64)
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    prediction: Annotated[
        dict[str, Any] | None, ignored("ignored 'prediction', the answer is written from scratch")
    ] = None
    verbosity: Annotated[str | None, ignored("ignored 'verbosity', ask for it in the messages", "medium")] = None

    # OpenAI's fields that Kvarn does not serve.
    audio: Annotated[None, refused("this server speaks text")] = None
    moderation: Refused = None
    web_search_options: Annotated[None, refused(even_empty=True)] = None

    # Extensions, with vLLM's names and meanings.
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: TemplateKwargs | None = None
    include_reasoning: bool = True  # send the reasoning beside the answer's content
    echo: bool = False  # begin the answer with the last message, where that is continued

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatCompletionRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise disagreement("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
        check_tool_results(self.messages)
        self._continuation_agrees()
        self._tools_agree()
        return self

    def _continuation_agrees(self) -> None:
        prompted = self.add_generation_prompt and "add_generation_prompt" in self.model_fields_set
        if self.continue_final_message and prompted:
            why = "'continue_final_message' and 'add_generation_prompt' cannot both be true."
            raise disagreement(why, "continue_final_message")
        if self.echo and not self.continue_final_message:
            raise disagreement("'echo' in chat needs 'continue_final_message'.", "echo")

    def _tools_agree(self) -> None:
        if self.functions is not None and self.tools is not None:
            raise disagreement("'functions' is the older name of 'tools': give one of them.", "functions")
        choice, offered = self.tool_choice, {tool.function.name for tool in self.function_tools}
        if choice not in (None, "none", "auto") and not self.tools:
            raise disagreement("'tool_choice' needs 'tools'.", "tool_choice")
        if isinstance(choice, NamedToolChoice):
            _check_offered(choice.function.name, offered, "tool_choice.function.name", "tools")
        if isinstance(choice, AllowedToolsChoice):
            for index, tool in enumerate(choice.allowed_tools.tools):
                where = f"tool_choice.allowed_tools.tools[{index}].function.name"
                _check_offered(tool.function.name, offered, where, "tools")
        if self.function_call not in (None, "none", "auto") and self.functions is None:
            raise disagreement("'function_call' needs 'functions'.", "function_call")
        if isinstance(self.function_call, FunctionReference):
            names = {function.name for function in self.functions or ()}
            _check_offered(self.function_call.name, names, "function_call.name", "functions")
        use = self.tool_use
        if use is not None and use.forced and (self.continue_final_message or not self.add_generation_prompt):
            raise disagreement("A call can be forced at the beginning of an answer only.", "tool_choice")

    @property
    def end_user(self) -> str | None:
        return self.safety_identifier or self.user

    @property
    def is_structured(self) -> bool:
        """Whether it says what its answer, or a call in it, must match."""
        formed = self.response_format is not None and self.response_format.type != "text"
        use = self.tool_use
        called = use is not None and (use.forced or any(function.strict for function in use.functions))
        return formed or called or super().is_structured

    @property
    def function_tools(self) -> list[Tool]:
        return [tool for tool in self.tools or () if isinstance(tool, Tool)]

    @property
    def hosted_tools(self) -> list[tuple[str, HostedTool]]:
        """Tools that the server runs, where it has them, with their places."""
        return [(f"tools[{n}]", tool) for n, tool in enumerate(self.tools or ()) if isinstance(tool, HostedTool)]

    @property
    def tool_use(self) -> ToolUse | None:
        """The use of tools; None without tools, or if they are not to be used."""
        if self.functions is not None:
            return self._function_use(tuple(self.functions))
        choice = self.tool_choice
        functions = tuple(tool.function for tool in self.function_tools)
        if not functions or choice == "none":
            return None
        parallel = self.parallel_tool_calls is not False
        if isinstance(choice, NamedToolChoice):
            return ToolUse(functions, forced=True, named=choice.function.name, parallel=False)
        if isinstance(choice, AllowedToolsChoice):
            names = {tool.function.name for tool in choice.allowed_tools.tools}
            allowed = tuple(function for function in functions if function.name in names)
            return ToolUse(allowed, forced=choice.allowed_tools.mode == "required", parallel=parallel)
        return ToolUse(functions, forced=choice == "required", parallel=parallel)

    def _function_use(self, functions: tuple[FunctionDefinition, ...]) -> ToolUse | None:
        if self.function_call == "none":
            return None
        named = self.function_call.name if isinstance(self.function_call, FunctionReference) else None
        return ToolUse(functions, forced=named is not None, named=named, parallel=False, legacy=True)

    @property
    def active_tools(self) -> list[dict[str, Any]] | None:
        """The tools shown to the model, as plain data; None where there are none or they are not to be used."""
        use = self.tool_use
        if use is None:
            return None
        return [{"type": "function", "function": each.shown} for each in use.functions]

    @property
    def plain_messages(self) -> list[dict[str, Any]]:
        return plain_messages(self.messages)


class CompletionChange(RequestModel):
    metadata: Metadata | None  # stands in the place of what it had


def _check_offered(name: str, offered: set[str], where: str, field: str) -> None:
    if name not in offered:
        raise disagreement(f"{where!r} is {name[:80]!r}: {field!r} has no function of that name.", where)
