"""The jinja2 environment that chat templates are written for: what transformers gives them, sandboxed and bounded.

Imported only when a template is loaded: jinja2 costs more to import than the rest of this room.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvarn.text.errors import ChatTemplateError

MAX_STEPS = 200_000
"""Loop rounds and macro calls of one rendering at most."""

MAX_CHARACTERS = 32 * 1024 * 1024
"""Characters that one rendering may write, and that one repetition may make."""

_TICK = "_kvarn_tick"


class GenerationExtension(Extension):
    """Lets `{% generation %}...{% endgeneration %}` through: it marks what training computes a loss on."""

    tags = {"generation"}  # noqa: RUF012  jinja2's protocol

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The block's body, as if the tags were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox in which templates cannot run for ever: each loop round and macro call is counted."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationExtension, loopcontrols])
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for node in template.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            assert isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
            tick = nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno).set_lineno(node.lineno))
            node.set_environment(self)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse repetitions and powers that would fill the memory."""
        if operator == "*":
            for items, count in ((left, right), (right, left)):
                if (
                    isinstance(items, str | list | tuple)
                    and isinstance(count, int)
                    and len(items) * count > MAX_CHARACTERS
                ):
                    raise TemplateError("it repeats something too often")
        elif isinstance(right, int) and abs(right) > 1024:
            raise TemplateError("it raises a number to too high a power")
        return super().call_binop(context, operator, left, right)


def render(template: Template, variables: Mapping[str, Any]) -> str:
    """Render within `MAX_STEPS` and `MAX_CHARACTERS`.

    Raises:
        ChatTemplateError: The template refuses the messages, is broken, or does not end.
    """
    pieces: list[str] = []
    size = 0
    try:
        for piece in template.generate({**variables, _TICK: _step_counter()}):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_CHARACTERS:
                raise TemplateError(f"it writes more than {MAX_CHARACTERS} characters")
    except RecursionError:
        raise ChatTemplateError("The chat template cannot render these messages: they or it nest too deeply.") from None
    except _RefusalError as error:
        raise ChatTemplateError(str(error)) from None
    except Exception as error:  # a template can fail in any way that Python can
        raise ChatTemplateError(f"The chat template cannot render these messages: {error}") from error
    return "".join(pieces)


class _RefusalError(TemplateError):
    """The template itself called `raise_exception`."""


def _step_counter() -> Callable[[], None]:
    steps = 0

    def tick() -> None:
        nonlocal steps
        steps += 1
        if steps > MAX_STEPS:
            raise TemplateError(f"it takes more than {MAX_STEPS} steps")

    return tick


def _raise_exception(message: object) -> NoReturn:
    raise _RefusalError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Not jinja2's own filter: that one escapes <, >, & and ' for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
