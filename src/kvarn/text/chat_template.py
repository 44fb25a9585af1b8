"""Chat templates: messages to the text that a model was trained on."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvarn.sandbox.errors import ClosedError, LimitPassedError, ProcessEndedError
from kvarn.sandbox.pool import SandboxPool
from kvarn.sandbox.process import SandboxLimits
from kvarn.text.errors import ChatTemplateError, PromptTooLongError, TemplateLimitError
from kvarn.text.json_file import read_json, token_text
from kvarn.text.local_path import local_path
from kvarn.text.messages import normalize_messages

MAX_CHARACTERS = 32 * 1024 * 1024
"""Longest prompt where the model's context sets no other bound."""

_MAX_SOURCE_BYTES = 1024 * 1024  # longest template; those that are published have some ten thousand

_END_OF_FINAL_MESSAGE = "\u2060\u2060kvarn: the answer goes on here\u2060\u2060"
"""Put after the message to continue, so that the rendering can be cut there whatever the template writes after it."""

_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})


@dataclass(frozen=True, slots=True)
class RenderRequest:
    payload: bytes
    continues: bool  # whether the last message is left open


class ChatTemplate:
    """The chat template of one checkpoint, perhaps with a variant for tools. It runs in processes of its own."""

    def __init__(
        self, sources: Mapping[str, str], special_tokens: Mapping[str, str], limits: SandboxLimits | None = None
    ) -> None:
        self.source = "\n".join(sources.values())
        """The text of all its variants: tells what the model was trained to write."""
        setup = json.dumps({"sources": dict(sources)}).encode()
        self.processes = SandboxPool("kvarn.text.template_worker", limits or SandboxLimits(), setup=setup)
        self._names = frozenset(sources)
        self._special_tokens = dict(special_tokens)

    @classmethod
    def load(cls, directory: Path, override: str | None = None, limits: SandboxLimits | None = None) -> ChatTemplate:
        """Read the template of a checkpoint.

        It stands in `chat_template.jinja` (variants in `additional_chat_templates/`), else in tokenizer_config.json, as
        text or a list of named ones. `override` (text, or the path of a file) replaces it. A checkpoint without any
        loads too: `request` then says what to do. Raises ChatTemplateError or CheckpointError where a file is broken or
        too long.
        """
        from kvarn.text.config_files import read_tokenizer_config  # brings pydantic

        config = read_tokenizer_config(directory)
        sources = {"default": read_template(override)} if override else _find_sources(directory, config)
        for name, source in sources.items():
            _check_size(len(source), f"{name!r} of {directory}")
        special = {name: text for name in config if name.endswith("_token") and (text := token_text(config[name]))}
        return cls(sources, special, limits)

    @property
    def exists(self) -> bool:
        """Whether the checkpoint has a template: base and embedding models have none."""
        return bool(self._names)

    async def start(self) -> None:
        """Compile it, if there is one. Raises ChatTemplateError where it is not valid, or passes a limit."""
        if self.exists and (reply := await _done(self.processes.start(), "be compiled")):
            _read_reply(reply)

    async def close(self) -> None:
        await self.processes.close()

    def request(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        max_characters: int = MAX_CHARACTERS,
    ) -> RenderRequest:
        """The input from which `render` makes the prompt of a conversation (messages and tools in OpenAI's form).

        `continue_final_message` leaves the last message open, for the model to go on with. `variables` are more
        variables of the template. The prompt may have `max_characters`, or four times what is in the messages. Safe to
        use from several threads. Raises ChatTemplateError where there is no template, or it cannot be given these
        messages.
        """
        reserved = _RESERVED & (variables or {}).keys()
        if reserved:
            raise ChatTemplateError(f"The template variable {min(reserved)!r} is set by the server: leave it out.")
        plain = normalize_messages(messages)
        if continue_final_message:
            _mark_end(plain)
        names = {
            **self._special_tokens,
            **(variables or {}),
            "messages": plain,
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        request = {"template": self._pick(with_tools=bool(tools)), "variables": names, "max_characters": max_characters}
        try:
            payload = json.dumps(request)
        except RecursionError:
            raise ChatTemplateError("The messages nest too deeply for a chat template.") from None
        return RenderRequest(payload.encode(), continue_final_message)

    async def render(self, request: RenderRequest, tenant: str = "") -> str:
        """The prompt of a conversation. Tenants take turns, and none takes all processes. Raises ChatTemplateError
        where the template refuses the messages or passes a limit, PromptTooLongError where the prompt is too
        long."""
        reply = await _done(self.processes.call(tenant, request.payload), "render these messages")
        text = _read_reply(reply)
        return _cut_at_mark(text) if request.continues else text

    def _pick(self, *, with_tools: bool) -> str:
        if with_tools and "tool_use" in self._names:
            return "tool_use"
        if "default" in self._names:
            return "default"
        raise ChatTemplateError(
            "This model has no chat template: use /v1/completions, or give the checkpoint a chat_template.jinja."
        )


async def _done(work: Coroutine[None, None, bytes], what: str) -> bytes:
    try:
        return await work
    except LimitPassedError as error:
        raise TemplateLimitError(f"The chat template cannot {what} {error}.") from None
    except ProcessEndedError as error:
        raise ChatTemplateError(f"The process that renders the chat template {error}.") from None
    except ClosedError:
        raise ChatTemplateError("The server is shutting down: no more chats are rendered.") from None


def _read_reply(reply: bytes) -> str:
    kind, text = reply[:1], reply[1:].decode("utf-8", "surrogatepass")
    if kind == b"-":
        raise ChatTemplateError(text)
    if kind == b">":
        raise PromptTooLongError(text)
    return text


def _find_sources(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    files = {path.stem: path for path in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    path = directory / "chat_template.jinja"
    if path.is_file():
        files["default"] = path
    if files:
        return {name: _read(path) for name, path in files.items()}
    in_config = config.get("chat_template") or read_json(directory / "chat_template.json").get("chat_template")
    if isinstance(in_config, list):
        return {entry["name"]: entry["template"] for entry in in_config}
    return {"default": in_config} if isinstance(in_config, str) else {}


def read_template(override: str) -> str:
    """The text of a template that is named by a file's path or is that text (it has a `{`). Raises ChatTemplateError
    where the file cannot be read or is too long, CheckpointError where no file can have that name."""
    return override if "{" in override else _read(local_path(override))


def _read(path: Path) -> str:
    try:
        _check_size(path.stat().st_size, str(path))
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ChatTemplateError(f"Cannot read the chat template {path}: {error}") from error


def _check_size(size: int, where: str) -> None:
    if size > _MAX_SOURCE_BYTES:
        raise ChatTemplateError(f"The chat template {where} is longer than {_MAX_SOURCE_BYTES} bytes.")


def _mark_end(messages: list[dict[str, Any]]) -> None:
    if not messages or not isinstance(messages[-1].get("content"), str):
        raise ChatTemplateError("There is no final message with text to continue.")
    messages[-1]["content"] += _END_OF_FINAL_MESSAGE


def _cut_at_mark(text: str) -> str:
    end = text.rfind(_END_OF_FINAL_MESSAGE)
    if end < 0:
        raise ChatTemplateError("The chat template does not show the final message as it is: it cannot be continued.")
    return text[:end]
