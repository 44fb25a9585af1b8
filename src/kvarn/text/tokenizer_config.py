"""tokenizer_config.json: the fields that Kvarn reads, validated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvarn.text.generation_config import CheckpointFile
from kvarn.text.json_file import read_json, validate


class _Token(CheckpointFile):
    content: str


class _NamedTemplate(CheckpointFile):
    name: str
    template: str


class _TokenizerConfig(CheckpointFile):
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    model_max_length: float | None = None
    chat_template: str | list[_NamedTemplate] | None = None


def read_tokenizer_config(directory: Path) -> dict[str, Any]:
    """The content of a checkpoint's tokenizer_config.json; empty where there is none.

    Raises:
        CheckpointError: The file is broken; the message names the wrong field.
    """
    path = directory / "tokenizer_config.json"
    content = read_json(path)
    validate(_TokenizerConfig, content, path)
    return content
