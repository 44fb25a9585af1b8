"""From the flags of `kvarn serve` to the configuration; `kvarn config`, which prints it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import typer
import yaml

from kvarn.cli.application import application
from kvarn.cli.options import ServeOptions
from kvarn.cli.output import EXIT_USAGE, stop
from kvarn.cli.values import ConfigPath, set_value
from kvarn.config.addresses import without_password
from kvarn.config.environment import read_api_key
from kvarn.config.load import ConfigError, load_config
from kvarn.config.schema import KvarnConfig
from kvarn.config.section import Section
from kvarn.text.local_path import local_path

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)

app = application()


@app.command("config")
def show_config(config: ConfigPath = None) -> None:
    """Print the effective configuration: defaults, then the file, then KVARN_... variables."""
    try:
        loaded = load_config(config)
    except ConfigError as error:
        stop(str(error), EXIT_USAGE)
    shown = _shown(loaded, loaded.model_dump(mode="json"), is_secret=False)
    typer.echo(yaml.safe_dump(shown, sort_keys=False), nl=False)


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
        set_value(every_model if path.startswith("models.") else settings, path.removeprefix("models."), value)
    try:
        key = read_api_key(os.environ, warn)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if key and "auth.api_keys" not in given:  # not by the flag's declaration: that would split it at spaces
        settings["auth"] = {"api_keys": [key]}
    models = _models_of(options)
    if models:
        settings["models"] = models
    of_one = {"models.adapters": "--lora-modules names adapters of one model, and several are served: use the file"}
    of_one = {path: text for path, text in of_one.items() if path in given}
    if options.served_model_name:
        of_one[""] = "--served-model-name names one model, and several are served: use --model NAME=PATH"
    if of_one and len(models or load_config(options.config, warn=lambda _: None).models) != 1:  # `warn` hears below
        raise ConfigError(next(iter(of_one.values())))
    if options.served_model_name:
        every_model["name"], *every_model["aliases"] = options.served_model_name
    return load_config(options.config, settings, every_model, warn)


def _models_of(options: ServeOptions) -> list[dict[str, str]]:
    models = []
    if options.model is not None:
        directory = local_path(options.model)  # served under its own name; a hub id or a packaged model as it is
        name = directory.resolve().name if directory.is_dir() else options.model
        models.append({"name": name, "path": options.model})
    for text in options.named or ():
        name, separator, path = text.partition("=")
        if not (name and separator and path):
            raise ConfigError(f"--model {text}: write it as NAME=PATH, such as --model chat=/models/llama")
        models.append({"name": name, "path": path})
    return models


def _shown(value: Any, dumped: Any, *, is_secret: bool) -> Any:
    """A part of the configuration without its secrets; `dumped` is the part as JSON has it."""
    if isinstance(value, Section):
        hidden = {name: not field.repr for name, field in type(value).model_fields.items()}
        hidden |= {name: False for name in hidden if name.endswith("url") and _is_address(dumped[name])}
        return {name: _shown(getattr(value, name), dumped[name], is_secret=hidden[name]) for name in hidden}
    if isinstance(value, dict):
        pairs = zip(value.values(), dumped.items(), strict=True)
        return {name: _shown(each, inner, is_secret=is_secret) for each, (name, inner) in pairs}
    if isinstance(value, tuple):
        return [_shown(each, inner, is_secret=is_secret) for each, inner in zip(value, dumped, strict=True)]
    if is_secret and dumped is not None:
        return "[secret]"
    return without_password(dumped) if _is_address(dumped) else dumped


def _is_address(value: Any) -> bool:
    """Whether only a password in it can be secret."""
    return isinstance(value, str) and _ADDRESS.match(value) is not None
