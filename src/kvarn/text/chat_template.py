"""Chat templates: messages to the text that a model was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvarn.text.errors import ChatTemplateError
from kvarn.text.json_file import read_json, token_text
from kvarn.text.messages import normalize_messages

if TYPE_CHECKING:
    from jinja2 import Template

_END_OF_FINAL_MESSAGE = "\u2060\u2060kvarn: the answer goes on here\u2060\u2060"
"""Put after the message to continue, so that the rendering can be cut there whatever the template writes after it."""

_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})


class ChatTemplate:
    """The chat template of one checkpoint, perhaps with a variant for tools. Safe to use from several threads."""

    def __init__(self, templates: Mapping[str, Template], special_tokens: Mapping[str, str], source: str = "") -> None:
        """Hold compiled templates by name (`default`, `tool_use`) and the special tokens they may write."""
        self.source = source
        """The text of all its variants: tells what the model was trained to write."""
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens)

    @classmethod
    def load(cls, directory: Path, override: str | None = None) -> ChatTemplate:
        """Read the template of a checkpoint.

        It stands in `chat_template.jinja` (variants in `additional_chat_templates/`) or in tokenizer_config.json, as
        text or as a list of named ones. `override` replaces it: the text of a template, or the path of a file.
        A checkpoint without any loads too (`exists` is False); `render` then says what to do.

        Raises:
            ChatTemplateError: A template is not valid.
            CheckpointError: A configuration file is broken.
        """
        from kvarn.text.tokenizer_config import read_tokenizer_config  # brings pydantic

        config = read_tokenizer_config(directory)
        sources = {"default": _read_override(override)} if override else _find_sources(directory, config)
        special = {name: text for name in config if name.endswith("_token") and (text := token_text(config[name]))}
        return cls(_compile(sources), special, "\n".join(sources.values()))

    @property
    def exists(self) -> bool:
        """Whether the checkpoint has a template: base and embedding models have none."""
        return bool(self._templates)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt of a conversation (messages and tools as OpenAI writes them).

        `add_generation_prompt` ends it where the model's answer begins; `continue_final_message` instead leaves the
        last message open, for the model to go on with. Other arguments are variables of the template.

        Raises:
            ChatTemplateError: No template, or it refuses or cannot render these messages.
        """
        from kvarn.text.template_environment import render  # brings jinja2; `load` has imported it already

        reserved = _RESERVED & kwargs.keys()
        if reserved:
            raise ChatTemplateError(f"The template variable {min(reserved)!r} is set by the server: leave it out.")
        plain = normalize_messages(messages)
        if continue_final_message:
            _mark_end(plain)
        variables = {
            **self._special_tokens,
            **kwargs,
            "messages": plain,
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        text = render(self._pick(with_tools=bool(tools)), variables)
        return _cut_at_mark(text) if continue_final_message else text

    def _pick(self, *, with_tools: bool) -> Template:
        template = self._templates.get("tool_use") if with_tools else None
        template = template or self._templates.get("default")
        if template is None:
            raise ChatTemplateError(
                "This model has no chat template: use /v1/completions, or give the checkpoint a chat_template.jinja."
            )
        return template


def _find_sources(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    sources: dict[str, str] = {}
    in_config = config.get("chat_template") or read_json(directory / "chat_template.json").get("chat_template")
    if isinstance(in_config, str):
        sources["default"] = in_config
    elif isinstance(in_config, list):
        sources |= {entry["name"]: entry["template"] for entry in in_config}
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        sources[path.stem] = _read(path)
    path = directory / "chat_template.jinja"
    if path.is_file():
        sources["default"] = _read(path)
    return sources


def _read_override(override: str) -> str:
    return override if "{" in override else _read(Path(override).expanduser())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ChatTemplateError(f"Cannot read the chat template {path}: {error}") from error


def _compile(sources: Mapping[str, str]) -> dict[str, Template]:
    if not sources:
        return {}
    from jinja2 import TemplateError  # a tenth of a second that models without a template do not pay

    from kvarn.text.template_environment import TemplateEnvironment

    environment = TemplateEnvironment()
    templates = {}
    for name, source in sources.items():
        try:
            templates[name] = environment.from_string(source)
        except TemplateError as error:
            raise ChatTemplateError(f"The chat template {name!r} is not valid: {error}") from error
    return templates


def _mark_end(messages: list[dict[str, Any]]) -> None:
    if not messages or not isinstance(messages[-1].get("content"), str):
        raise ChatTemplateError("There is no final message with text to continue.")
    messages[-1]["content"] += _END_OF_FINAL_MESSAGE


def _cut_at_mark(text: str) -> str:
    end = text.rfind(_END_OF_FINAL_MESSAGE)
    if end < 0:
        raise ChatTemplateError("The chat template does not show the final message as it is: it cannot be continued.")
    return text[:end]
