"""Texts on the command line to values of settings. Each raises `typer.BadParameter`, which names the option."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kvarn.config.yaml import parse_yaml

ConfigPath = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML file; see docs/reference/configuration.md.")
]

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_KEY = re.compile(r"[!-~]*")
_FACTORS = {"": 1} | {letter: 1000**power for power, letter in enumerate("kmgt", 1)}
_FACTORS |= {letter: 1024**power for power, letter in enumerate("KMGT", 1)}


def human_int(text: str) -> int:
    """A whole number, perhaps with a unit: k, m, g, t are powers of 1000, K, M, G, T powers of 1024, as in vLLM."""
    found = _NUMBER.fullmatch(text)
    number = float(found[1]) * _FACTORS[found[2]] if found else 0.5
    if number != int(number):
        raise typer.BadParameter(f"{text!r} is not a whole number such as 4096, 25.6k (thousands) or 32K (1024s)")
    return int(number)


def byte_count_in_gib(text: str) -> float:
    """A number of bytes, written as `human_int` reads it, in GiB."""
    return human_int(text) / 2**30


def api_key(text: str) -> str:
    """An API key, without what is around it in a file. The error does not show it."""
    key = text.strip()
    if not _KEY.fullmatch(key):
        raise typer.BadParameter("an API key is printable ASCII without spaces")
    return key


def absolute_path(text: str) -> str:
    return str(Path(text).expanduser().absolute())


def packed_cache(text: str) -> str:
    """The value of `packed_cache`: a directory as seen from the present one, or a word."""
    return text if text in ("auto", "off") else absolute_path(text)


def _one_of(values: Mapping[str, str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in values:
            raise typer.BadParameter(f"{text!r} is not known: use one of {', '.join(values)}")
        return values[text]

    return read


def speculation(text: str) -> dict[str, object]:
    """vLLM's JSON object of `--speculative-config`; its fields are those of the `speculation` section."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise typer.BadParameter('expected a JSON object such as {"method": "ngram", "num_speculative_tokens": 8}')
    return found


tool_format = _one_of(
    {
        "auto": "auto",
        "hermes": "hermes",
        "qwen": "hermes",
        "qwen2": "hermes",
        "qwen2_5": "hermes",
        "qwen3": "hermes",
        "llama3": "llama3",
        "llama3_json": "llama3",
        "llama4_json": "llama3",
        "mistral": "mistral",
        "pythonic": "pythonic",
        "llama4_pythonic": "pythonic",
        **{name: name for name in ("gpt_oss", "deepseek", "glm", "granite", "phi")},
        "openai": "gpt_oss",
        **dict.fromkeys(("deepseek_v3", "deepseek_v31"), "deepseek"),
        **dict.fromkeys(("glm45", "glm47"), "glm"),
        "granite4": "granite",
        "phi4_mini_json": "phi",
    }
)
"""The value of `tool_format` for the name of a tool-call parser: vLLM's names, and Kvarn's."""

reasoning_format = _one_of(
    {
        **{
            name: name for name in ("auto", "none", "qwen3", "deepseek_r1", "gpt_oss", "granite", "mistral", "seed_oss")
        },
        **dict.fromkeys(("deepseek_v3", "deepseek_v31", "glm45", "glm47", "hunyuan_a13b", "intern_s1"), "qwen3"),
        "openai_gptoss": "gpt_oss",
    }
)
"""The value of `reasoning_format` for the name of a reasoning parser: vLLM's names, and Kvarn's."""

dtype = _one_of(
    {name: name for name in ("auto", "bfloat16", "float16", "float32")} | {"half": "float16", "float": "float32"}
)
"""The value of `dtype` for one of vLLM's names."""


def generation_config(text: str) -> str:
    """The value of `generation_config`: vLLM calls `none` by its own name."""
    return "none" if text == "vllm" else text


def origins(texts: list[str]) -> list[str]:
    """Origins, each a text of its own or several as a JSON list (vLLM's way)."""
    found: list[str] = []
    for text in texts:
        try:
            found += json.loads(text) if text.startswith("[") else [text]
        except ValueError:
            raise typer.BadParameter(f"--allowed-origins {text!r} is not a JSON list") from None
    return found


def absolute_paths(texts: list[str]) -> list[str]:
    return [absolute_path(text) for text in texts]


def lora_modules(texts: list[str]) -> list[dict[str, str]]:
    """Adapters as vLLM's flag names them: NAME=PATH, or a JSON object with `name` and `path`."""
    modules = []
    for text in texts:
        if text.lstrip().startswith("{"):
            try:
                module = json.loads(text)
            except ValueError as error:
                raise typer.BadParameter(f"--lora-modules {text}: no JSON: {error}") from None
            module.pop("base_model_name", None)  # vLLM's: what the model card shows
        else:
            name, separator, path = text.partition("=")
            if not (name and separator and path):
                raise typer.BadParameter(f"--lora-modules {text}: write it as NAME=PATH, or as JSON")
            module = {"name": name, "path": path}
        modules.append(module)
    return modules


def set_value(settings: dict[str, Any], path: str, value: Any) -> None:
    """Set a nested value by its path, such as `engine.max_num_seqs`."""
    *sections, name = path.split(".")
    for section in sections:
        settings = settings.setdefault(section, {})
    settings[name] = value


def read_settings(texts: Sequence[str] | None, option: str) -> dict[str, Any]:
    """Values of `SETTING=VALUE`, as YAML reads them, by the setting. `option` took them."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r}: write it as SETTING=VALUE", param_hint=option)
        found[name] = parse_yaml(value)
    return found
