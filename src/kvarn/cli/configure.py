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
from kvarn.config.environment import read_api_key
from kvarn.config.load import ConfigError, load_config
from kvarn.config.schema import KvarnConfig
from kvarn.config.section import Section
from kvarn.text.local_path import local_path

app = application()


@app.command("config")
def show_config(config: ConfigPath = None) -> None:
    """Print the effective configuration: defaults, then the file, then KVARN_... variables."""
    try:
        loaded = load_config(config)
    except ConfigError as error:
        stop(str(error), EXIT_USAGE)
    typer.echo(yaml.safe_dump(_without_secrets(loaded), sort_keys=False), nl=False)


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


def _without_secrets(section: Section) -> dict[str, Any]:
    shown = section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if not field.repr:
            shown[name] = _hidden(value)
        elif isinstance(value, Section):
            shown[name] = _without_secrets(value)
        elif isinstance(value, tuple) and any(isinstance(each, Section) for each in value):
            shown[name] = [_without_secrets(each) for each in value]
    return shown


def _hidden(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _hidden(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [_hidden(each) for each in value]
    if isinstance(value, str) and "://" in value:  # an address, of which only the password is secret
        return _without_password(value)
    return None if value is None else "[secret]"


def _without_password(url: str) -> str:
    """Also where what stands in a password should have been encoded."""
    shown = re.sub(r"(://[^:@/]*):.*@", r"\1:[password]@", url)
    return re.sub(r"(password=)[^&]*", r"\1[password]", shown)
