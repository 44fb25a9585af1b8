"""A training or golden example, and how it becomes prompt text and answer text.

The recipe renders with the same template that ships with the model, so what is trained is what is served.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATE_PATH = Path(__file__).with_name("chat_template.jinja")

Message = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """A conversation that ends with the assistant's answer; every assistant turn in it is learnt."""

    category: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    held_out: bool = False
    sort_tools: bool = field(default=False, compare=False)

    @property
    def answer(self) -> str:
        """The text of the last turn as the model must produce it."""
        return answer_text(self.messages[-1])


@dataclass(frozen=True)
class Segment:
    """A piece of text and whether the model is trained to produce it."""

    text: str
    learnt: bool


def user(text: str) -> Message:
    """A user turn."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """An assistant turn with plain text."""
    return {"role": "assistant", "content": text}


def tool_call_text(name: str, arguments: dict[str, Any]) -> str:
    """A tool call in the form the model writes it."""
    call = f'{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}'
    return f"<tool_call>\n{call}\n</tool_call>"


def answer_text(message: Message) -> str:
    """The text of an assistant turn, tool calls included."""
    parts = [message["content"]] if message.get("content") else []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        parts.append(tool_call_text(function["name"], json.loads(function["arguments"])))
    return "\n".join(parts)


@lru_cache(maxsize=2)
def _template(sort_keys: bool) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False, sort_keys=sort_keys)
    return environment.from_string(TEMPLATE_PATH.read_text(encoding="utf-8"))


def render(sample: Sample, messages: tuple[Message, ...], generation_prompt: bool) -> str:
    """Render some turns of a sample.

    Jinja's own `tojson` sorts keys and that of transformers does not; `sort_tools` lets training see both.
    """
    template = _template(sample.sort_tools)
    return template.render(messages=messages, tools=sample.tools or None, add_generation_prompt=generation_prompt)


def segments(sample: Sample) -> list[Segment]:
    """Cut the rendered conversation into learnt and given pieces."""
    pieces: list[Segment] = []
    done = ""
    for index, message in enumerate(sample.messages):
        if message["role"] != "assistant":
            continue
        before = render(sample, sample.messages[:index], generation_prompt=True)
        if not before.startswith(done):
            raise ValueError("the chat template does not render a conversation as a growing prefix")
        answer = answer_text(message) + "<|im_end|>"
        pieces += [Segment(before[len(done) :], False), Segment(answer, True)]
        done = before + answer
    return pieces
