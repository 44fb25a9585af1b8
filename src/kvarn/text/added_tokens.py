"""The content of tokenizer.json, with what the files beside it say of added tokens, as transformers completes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvarn.text.errors import TokenizerError
from kvarn.text.json_file import check_size, token_text

_MAX_FILE_BYTES = 512 * 1024 * 1024  # longest tokenizer.json: the largest published ones have about 40 MB
_KEY = '"added_tokens":'
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_IF_KNOWN = "if_known"
"""Marks a token that is added only where the vocabulary has it: one that is only named, such as a padding token."""


def read_tokenizer_text(directory: Path) -> str:
    """The text of a directory's tokenizer.json, completed. Most are complete, and are not read twice. Raises
    TokenizerError where it is missing or broken, CheckpointError for a broken configuration file or one that is
    too long."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(_missing(directory))
    check_size(path, _MAX_FILE_BYTES)
    try:
        text = path.read_text(encoding="utf-8")
        own = {token["content"]: token for token in added_tokens(text)}
        lacking = list(_lacking(directory, own))
        return _with_tokens(text, lacking) if lacking else text
    except RecursionError:
        raise TokenizerError(f"Cannot read {path}: its JSON is nested too deeply.") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise TokenizerError(f"Cannot read {path}: {error}. Is the checkpoint complete?") from error


def added_tokens(tokenizer: str) -> list[dict[str, Any]]:
    """The added tokens in the text of a tokenizer.json. They are read alone: the vocabulary beside them is large."""
    place = tokenizer.find(_KEY)
    if place < 0:
        return []
    rest = tokenizer[place + len(_KEY) : place + len(_KEY) + 4_000_000].lstrip()
    return list(json.JSONDecoder().raw_decode(rest)[0] or [])


def _lacking(directory: Path, own: Mapping[str, Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The tokens that the files tell of and tokenizer.json does not have, or has with other flags, by their ids."""
    from kvarn.text.config_files import read_added_tokens, read_tokenizer_config  # brings pydantic

    config = read_tokenizer_config(directory)
    values = [config[name] for name in config if name.endswith("_token")]
    more = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    values += more.values() if isinstance(more, dict) else more
    named = {text: value for value in values if (text := token_text(value)) is not None}
    listed = config.get("added_tokens_decoder")
    if listed is not None:
        told = {int(token_id): token for token_id, token in listed.items()}
    else:  # as older versions wrote it
        older = read_added_tokens(directory)
        found = {text: own.get(text, {"content": text, "special": text in named}) for text in older}
        told = {older[text]: token for text, token in found.items()}
    for _, token in sorted(told.items(), key=lambda each: each[0]):
        if token["content"] not in own or _flags(own[token["content"]]) != _flags(token):
            yield token
    for text in named.keys() - own.keys() - {token["content"] for token in told.values()}:
        value = named[text]
        yield {**(value if isinstance(value, dict) else {"content": text}), "special": True, _IF_KNOWN: True}


def _flags(token: Mapping[str, Any]) -> tuple[bool, ...]:
    return tuple(bool(token.get(flag, flag == "normalized" and not token.get("special"))) for flag in _FLAGS)


def _with_tokens(text: str, lacking: list[Mapping[str, Any]]) -> str:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Library

    try:
        library = Library.from_str(text)
    except Exception as error:  # the library raises plain Exception
        raise ValueError(str(error)) from None
    for token in lacking:
        name = token["content"]
        if not token.get(_IF_KNOWN) or library.token_to_id(name) is not None:
            library.add_tokens([AddedToken(name, **dict(zip(_FLAGS, _flags(token), strict=True)))])
    return library.to_str()


def _missing(directory: Path) -> str:
    others = ("*.model", "tekken.json", "*.tiktoken", "vocab.json", "vocab.txt")
    found = [path.name for pattern in others for path in sorted(directory.glob(pattern))]
    if found:
        return (
            f"{directory} has no tokenizer.json, only {', '.join(found)}: convert it to tokenizer.json, for example "
            "with transformers: AutoTokenizer.from_pretrained(directory).save_pretrained(directory)."
        )
    return f"{directory} has no tokenizer.json: the checkpoint is incomplete."
