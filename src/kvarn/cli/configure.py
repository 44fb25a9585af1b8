"""From the flags of `kvarn serve` to the configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvarn.cli.options import ServeOptions
from kvarn.config.load import ConfigError, load_config
from kvarn.config.schema import KvarnConfig


def configure(options: ServeOptions, warn: Callable[[str], None]) -> KvarnConfig:
    """The configuration with the flags over it. Models on the command line take the place of the configured ones;
    the flags about models hold for all that are served. `warn` is given what is no error, a line each.

    Raises:
        ConfigError: Something cannot be used; the message says what to change.
    """
    settings: dict[str, Any] = {}
    every_model: dict[str, Any] = {}
    given: dict[str, str] = {}
    for flag, path, value in options.settings():
        if path in given:
            raise ConfigError(f"{given[path]} and {flag} set the same thing ({path}): give one of them")
        given[path] = flag
        of_models = path.startswith("models.")
        _put(every_model if of_models else settings, path.removeprefix("models."), value)
    key = os.environ.get("KVARN_API_KEY", "").strip()
    if key and options.api_key is None:  # not by the flag's declaration: that would split it at spaces
        _put(settings, "auth.api_keys", [key])
    models = _models_of(options)
    if models:
        settings["models"] = models
    if options.served_model_name:
        if len(models or load_config(options.config, warn=_ignore).models) != 1:
            raise ConfigError("--served-model-name names one model, and several are served: use --model NAME=PATH")
        every_model["name"], *every_model["aliases"] = options.served_model_name
    return load_config(options.config, settings, every_model, warn)


def _ignore(_: str) -> None:
    """The same warning comes again."""


def _put(settings: dict[str, Any], path: str, value: Any) -> None:
    *sections, name = path.split(".")
    for section in sections:
        settings = settings.setdefault(section, {})
    settings[name] = value


def _models_of(options: ServeOptions) -> list[dict[str, Any]]:
    models = []
    if options.model is not None:
        models.append({"name": _name_of(options.model), "path": options.model})
    for text in options.named or ():
        name, separator, path = text.partition("=")
        if not (name and separator and path):
            raise ConfigError(f"--model {text}: write it as NAME=PATH, such as --model chat=/models/llama")
        models.append({"name": name, "path": path})
    return models


def _name_of(path: str) -> str:
    """A directory's own name; a hub id or a packaged model as it is."""
    directory = Path(path).expanduser()
    return directory.resolve().name if directory.is_dir() else path
