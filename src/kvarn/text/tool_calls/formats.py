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


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Format in which a model writes tool calls."""

    name: str
    parser: type[ToolCallParser]
    before_name: str
    """Beginning of a call, up to its name. It ends before a space: tokenizers join that to the text behind it."""
    name_on: str
    """The name, `{}`, and what follows it up to the arguments."""
    markers: tuple[str, ...] = ()
    """Special tokens that mark calls: the parser must see them, though they are no part of the text."""
    new_id: Callable[[], str] = new_call_id
    shown_id: Callable[[str], str] = str
    """Form of a call's id that the model sees."""

    def opening(self, name: str | None) -> str:
        """Text that begins a call of this name (None: of any name): written into the prompt to force one."""
        return self.before_name + ("" if name is None else self.name_on.format(name))

    def make_parser(
        self,
        names: Collection[str] | None = None,
        *,
        opening: str = "",
        max_calls: int | None = None,
        parameters: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> ToolCallParser:
        return self.parser(names, opening=opening, max_calls=max_calls, parameters=parameters, new_id=self.new_id)


_OBJECT, _NAME_ON = '{"name":', ' "{}", "arguments":'
_HERMES_OPENING = f"<tool_call>\n{_OBJECT}"
HERMES = ToolFormat("hermes", HermesParser, _HERMES_OPENING, _NAME_ON, ("<tool_call>", "</tool_call>"))
# A forced call is an object for all Llama 3 models: arguments in Python's form cannot be kept to a schema.
LLAMA3 = ToolFormat("llama3", Llama3Parser, _OBJECT, ' "{}", "parameters":', ("<|python_tag|>",))
PYTHONIC = replace(LLAMA3, name="pythonic")
_MISTRAL_MARKERS = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
MISTRAL = ToolFormat(
    "mistral",
    MistralParser,
    f"[TOOL_CALLS] [{_OBJECT}",
    _NAME_ON,
    _MISTRAL_MARKERS,
    mistral_call_id,
    mistral_shown_id,
)
MISTRAL_TAGGED = replace(MISTRAL, before_name="[TOOL_CALLS]", name_on="{}[ARGS]")
GPT_OSS = ToolFormat(
    "gpt_oss",
    HarmonyParser,
    f"{CHANNEL}commentary to=functions.",
    f"{{}} {CONSTRAIN}json{MESSAGE}",
    (START, CHANNEL, CONSTRAIN, MESSAGE, CALL, END),
)
_DEEPSEEK_MARKERS = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR)
_DEEPSEEK_OPENING = CALLS_BEGIN + CALL_BEGIN
DEEPSEEK_BARE = ToolFormat("deepseek", DeepseekParser, _DEEPSEEK_OPENING, f"{{}}{SEPARATOR}", _DEEPSEEK_MARKERS)
DEEPSEEK = replace(DEEPSEEK_BARE, before_name=f"{_DEEPSEEK_OPENING}function{SEPARATOR}", name_on="{}\n```json\n")
_GLM_MARKERS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
GLM = ToolFormat("glm", GlmParser, "<tool_call>", "{}\n", _GLM_MARKERS)
_GRANITE_MARKERS = ("<|tool_call|>", "<tool_call>", "</tool_call>")
GRANITE = ToolFormat("granite", GraniteParser, f"<|tool_call|>[{_OBJECT}", _NAME_ON, _GRANITE_MARKERS)
GRANITE_HERMES = replace(GRANITE, before_name=_HERMES_OPENING)
_PHI_MARKERS = ("<|tool_call|>", "<|/tool_call|>")
PHI = ToolFormat("phi", PhiParser, f"<|tool_call|>[{_OBJECT}", _NAME_ON, _PHI_MARKERS)
PHI_FUNCTOOLS = replace(PHI, before_name=f"functools[{_OBJECT}")


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
