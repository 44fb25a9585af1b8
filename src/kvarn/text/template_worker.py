"""Renders chat templates, in a process of `kvarn.sandbox`: they are programs that come with a checkpoint.

Imports jinja2 and nothing of Kvarn's, so that it starts in a tenth of a second. A request is JSON: the sources of the
templates first, then conversations. A reply is a kind (one byte) and a text: `+` the result, `-` an error, `>` the
prompt is too long.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_GROWTH = 4
"""Characters of a prompt for each byte of the messages: what is around a short message is longer than the message."""

_ERROR_CHARACTERS = 2000
"""Longest text of an error: a template can raise one of any length."""


_templates: dict[str, Template] = {}
"""Those of the checkpoint: the process has one, and does one thing at a time."""
_problems: list[str] = []
"""Why they cannot be rendered."""


def answer(payload: bytes) -> bytes:
    request = json.loads(payload)
    if "sources" in request:
        kind, text = _compile(request["sources"])
    elif _problems:
        kind, text = b"-", _problems[0]
    else:
        # The request may be counted, too, where it is longer than the model's context.
        limit = max(request["max_characters"], _GROWTH * len(payload))
        kind, text = _render(_templates[request["template"]], request["variables"], limit)
    return kind + text.encode("utf-8", "surrogatepass")


def _compile(sources: Mapping[str, str]) -> tuple[bytes, str]:
    environment = TemplateEnvironment()
    for name, source in sources.items():
        try:
            _templates[name] = environment.from_string(source)
        except MemoryError:
            raise
        except Exception as error:  # what jinja2 makes of a source may be no valid Python, or nest too deeply for it
            _problems.append(f"The chat template {name!r} is not valid: {_text(error)}")
            return b"-", _problems[0]
    return b"+", ""


def _render(template: Template, variables: Mapping[str, Any], max_characters: int) -> tuple[bytes, str]:
    pieces: list[str] = []
    size = 0
    try:
        for piece in template.generate(variables):
            pieces.append(piece)
            size += len(piece)
            if size > max_characters:
                return b">", (
                    "This model's maximum context length is exceeded: these messages make a prompt of more than "
                    f"{max_characters} characters. Shorten them."
                )
    except MemoryError:
        raise
    except RecursionError:
        return b"-", "The chat template cannot render these messages: they or it nest too deeply."
    except _RefusalError as error:
        return b"-", _text(error)
    except Exception as error:  # a template can fail in any way that Python can
        return b"-", f"The chat template cannot render these messages: {_text(error)}"
    return b"+", "".join(pieces)


def _text(error: Exception) -> str:
    return str(error)[:_ERROR_CHARACTERS]


class GenerationExtension(Extension):
    """Lets `{% generation %}...{% endgeneration %}` through: it marks what training computes a loss on."""

    tags = {"generation"}  # noqa: RUF012  jinja2's protocol

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The block's body, as if the tags were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The environment that chat templates are written for: that of transformers, sandboxed in the same way."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationExtension, loopcontrols])
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)


class _RefusalError(TemplateError):
    """The template itself called `raise_exception`."""


def _raise_exception(message: object) -> NoReturn:
    raise _RefusalError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Not jinja2's own filter: that one escapes <, >, & and ' for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
