"""The formats in which models write tool calls, and which one a model writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvarn.text.reasoning.harmony import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, START
from kvarn.text.tool_calls.base import ToolCallParser
from kvarn.text.tool_calls.deepseek import CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END, SEPARATOR, DeepseekParser
from kvarn.text.tool_calls.events import new_call_id
from kvarn.text.tool_calls.glm import GlmParser
from kvarn.text.tool_calls.harmony import HarmonyParser
from kvarn.text.tool_calls.llama3 import Llama3Parser
from kvarn.text.tool_calls.mistral import MistralParser, mistral_call_id, mistral_shown_id
from kvarn.text.tool_calls.tagged import GraniteParser, HermesParser, PhiParser

NAME = "\0"
"""Stands in a `CallSyntax` for the function's name."""


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """Syntax of calls as a model writes them: begin, calls with separators between them, end."""

    call: str
    """Up to the arguments of a call."""
    after: str
    """Behind the arguments."""
    separator: str | None = ""
    """None: there is one call."""
    begin: str = ""
    end: str = ""
    marker: str = ""
    """Text that begins a call, and that text outside calls must not contain; empty if no text marks the beginning of a
    call."""
    json: bool = True
    """Whether arguments are JSON: else they cannot be kept to a schema."""

    def prefix(self, name: str) -> str:
        """The text up to the arguments of the first call."""
        return self.begin + self.call.replace(NAME, name)


@dataclass(frozen=True, slots=True)
class ToolFormat:
    name: str
    parser: type[ToolCallParser]
    syntax: CallSyntax
    """Form of calls that are forced or kept to a schema; the parser may read others, too."""
    markers: tuple[str, ...] = ()
    """Special tokens that mark calls: the parser must see them, though they are no part of the text."""
    new_id: Callable[[], str] = new_call_id
    shown_id: Callable[[str], str] = str
    """Form of a call's id that the model sees."""

    def opening(self, name: str | None) -> str:
        """Text that begins a call of this name (None: of any name): written into the prompt to force one. It ends
        before a space: tokenizers join that to the text behind it."""
        if name is None:
            return self.syntax.prefix(NAME).partition(NAME)[0].removesuffix(' "')
        return self.syntax.prefix(name).rstrip(" ")

    def make_parser(
        self,
        names: Collection[str] | None = None,
        *,
        opening: str = "",
        max_calls: int | None = None,
        parameters: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> ToolCallParser:
        return self.parser(names, opening=opening, max_calls=max_calls, parameters=parameters, new_id=self.new_id)


_OBJECT = f'{{"name": "{NAME}", "arguments": '


def _list(tag: str) -> CallSyntax:
    """A list of objects behind a tag."""
    return CallSyntax(_OBJECT, "}", separator=", ", begin=f"{tag}[", end="]", marker=tag.strip())


_HERMES = CallSyntax(f"<tool_call>\n{_OBJECT}", "}\n</tool_call>", separator="\n", marker="<tool_call>")
HERMES = ToolFormat("hermes", HermesParser, _HERMES, ("<tool_call>", "</tool_call>"))
# A forced call is an object for all Llama 3 models: arguments in Python's form cannot be kept to a schema.
_LLAMA3 = CallSyntax(f'{{"name": "{NAME}", "parameters": ', "}", separator="; ")
LLAMA3 = ToolFormat("llama3", Llama3Parser, _LLAMA3, ("<|python_tag|>",))
PYTHONIC = replace(LLAMA3, name="pythonic")
_MISTRAL_MARKERS = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
MISTRAL = ToolFormat(
    "mistral", MistralParser, _list("[TOOL_CALLS] "), _MISTRAL_MARKERS, mistral_call_id, mistral_shown_id
)
MISTRAL_TAGGED = replace(MISTRAL, syntax=CallSyntax(f"[TOOL_CALLS]{NAME}[ARGS]", "", marker="[TOOL_CALLS]"))
_HARMONY = CallSyntax(f"{CHANNEL}commentary to=functions.{NAME} {CONSTRAIN}json{MESSAGE}", "", separator=None)
GPT_OSS = ToolFormat("gpt_oss", HarmonyParser, _HARMONY, (START, CHANNEL, CONSTRAIN, MESSAGE, CALL, END))
_DEEPSEEK = CallSyntax(f"{CALL_BEGIN}{NAME}{SEPARATOR}", CALL_END, begin=CALLS_BEGIN, end=CALLS_END, marker=CALLS_BEGIN)
_FENCED = replace(
    _DEEPSEEK,
    call=f"{CALL_BEGIN}function{SEPARATOR}{NAME}\n```json\n",
    after=f"\n```{CALL_END}",
    separator="\n",
)
DEEPSEEK_BARE = ToolFormat(
    "deepseek", DeepseekParser, _DEEPSEEK, (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR)
)
DEEPSEEK = replace(DEEPSEEK_BARE, syntax=_FENCED)
_GLM_MARKERS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
GLM = ToolFormat("glm", GlmParser, CallSyntax(f"<tool_call>{NAME}\n", "", json=False), _GLM_MARKERS)
_GRANITE_MARKERS = ("<|tool_call|>", "<tool_call>", "</tool_call>")
GRANITE = ToolFormat("granite", GraniteParser, _list("<|tool_call|>"), _GRANITE_MARKERS)
GRANITE_HERMES = replace(GRANITE, syntax=_HERMES)
PHI = ToolFormat("phi", PhiParser, _list("<|tool_call|>"), ("<|tool_call|>", "<|/tool_call|>"))
PHI_FUNCTOOLS = replace(PHI, syntax=replace(_list("functools"), marker="functools["))


def find_format(setting: str, template: str, has_token: Callable[[str], bool]) -> ToolFormat:
    """The format of a model. `setting`: `models[].tool_format`; `template`: all text of its chat templates;
    `has_token`: whether its vocabulary has a token."""

    def known(mark: str) -> bool:
        return mark in template or has_token(mark)

    named = setting if setting != "auto" else _by_marks(template, known)
    formats = {
        "hermes": HERMES,
        "llama3": LLAMA3,
        "pythonic": PYTHONIC,
        "mistral": MISTRAL_TAGGED if known("[ARGS]") else MISTRAL,
        "gpt_oss": GPT_OSS,
        "deepseek": DEEPSEEK if "```json" in template else DEEPSEEK_BARE,
        "glm": GLM,
        "granite": GRANITE if known("<|tool_call|>") else GRANITE_HERMES,
        "phi": PHI if known("<|tool_call|>") else PHI_FUNCTOOLS,
    }
    return formats[named]


def _by_marks(template: str, known: Callable[[str], bool]) -> str:
    """The template says it most surely; tokens may be those of a base model that was trained on to another format."""
    if CHANNEL in template and MESSAGE in template:
        return "gpt_oss"
    if "<arg_key>" in template:
        return "glm"
    if "<tool_call>" in template:
        return "hermes"
    if CALLS_BEGIN in template:
        return "deepseek"
    if "functools[" in template or known("<|/tool_call|>"):
        return "phi"
    if known("<|tool_call|>"):
        return "granite"
    if known("[TOOL_CALLS]"):
        return "mistral"
    if "func_name1(" in template:
        return "pythonic"
    return "llama3" if known("<|python_tag|>") else "hermes"
