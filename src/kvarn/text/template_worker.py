"""The process that renders chat templates: `python template_worker.py MEMORY_BYTES TIMEOUT_S`.

Started by `TemplateProcess`. A script that imports jinja2 and nothing of Kvarn's, so that it starts in a tenth of a
second. It reads requests from standard input and writes replies to standard output, each behind its length in 8 bytes;
the first reply comes without a request, once it is ready. A request is JSON: the sources of the templates first, then
conversations. A reply is a kind (one byte) and a text: `+` the result, `-` an error, `>` the prompt is too
long. The end of standard input ends the process, as do the limits.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, BinaryIO, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_OUT_OF_MEMORY = 3
"""Exit status; `TemplateProcess` knows it."""

_GROWTH = 4
"""Characters of a prompt for each byte of the messages: what is around a short message is longer than the message."""

_ERROR_CHARACTERS = 2000
"""Longest text of an error: a template can raise one of any length."""


def main(arguments: list[str]) -> int:
    """Compile and render until standard input ends."""
    _limit_memory(int(arguments[0]))
    timeout_s = float(arguments[1])
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    templates: dict[str, Template] = {}
    _write(replies, b"+")
    while size := requests.read(8):
        signal.setitimer(signal.ITIMER_REAL, timeout_s)  # ends this process; `TemplateProcess` knows the status
        try:
            reply = _answer(templates, requests.read(int.from_bytes(size, "big")))
            _write(replies, reply)
        except MemoryError:
            os._exit(_OUT_OF_MEMORY)  # unwinding would need memory
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


def _limit_memory(memory_bytes: int) -> None:
    with suppress(ValueError, OSError):  # macOS has no such limit; elsewhere the system's own is lower already
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _write(replies: BinaryIO, reply: bytes) -> None:
    replies.write(len(reply).to_bytes(8, "big"))
    replies.write(reply)
    replies.flush()


def _answer(templates: dict[str, Template], payload: bytes) -> bytes:
    request = json.loads(payload)
    if "sources" in request:
        kind, text = _compile(templates, request["sources"])
    else:
        # What somebody sent may be counted, too, where it is longer than the model's context.
        limit = max(request["max_characters"], _GROWTH * len(payload))
        kind, text = _render(templates[request["template"]], request["variables"], limit)
    return kind + text.encode("utf-8", "surrogatepass")


def _compile(templates: dict[str, Template], sources: Mapping[str, str]) -> tuple[bytes, str]:
    environment = TemplateEnvironment()
    for name, source in sources.items():
        try:
            templates[name] = environment.from_string(source)
        except MemoryError:
            raise
        except Exception as error:  # what jinja2 makes of a source may be no valid Python, or nest too deeply for it
            return b"-", f"The chat template {name!r} is not valid: {_text(error)}"
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
    """What chat templates are written for: the environment that transformers gives them, sandboxed as there."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationExtension, loopcontrols])
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now


class _RefusalError(TemplateError):
    """The template itself called `raise_exception`."""


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
