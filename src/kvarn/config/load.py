"""Read the configuration: defaults, then a YAML file, then the environment (`KVARN_...`), then flags."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from kvarn.config.environment import read_environment
from kvarn.config.extras import missing_extra_of
from kvarn.config.schema import KvarnConfig
from kvarn.config.setting_files import read_setting
from kvarn.config.yaml import YamlLoader


class ConfigError(ValueError):
    """The configuration cannot be used; the message names the field and what to do."""


_log = logging.getLogger(__name__)


class _YamlLoader(YamlLoader):
    """YAML in which `!file PATH` stands for the content of a file."""

    warn: Callable[[str], None] = _log.warning

    def read_file(self, node: yaml.ScalarNode) -> str:
        return read_setting(self.construct_scalar(node), f"!file in line {node.start_mark.line + 1}", self.warn)


_YamlLoader.add_constructor("!file", _YamlLoader.read_file)


def load_config(
    path: Path | None = None,
    flags: dict[str, Any] | None = None,
    every_model: dict[str, Any] | None = None,
    warn: Callable[[str], None] = _log.warning,
) -> KvarnConfig:
    """Merge the sources, later ones over earlier ones, and check the whole.

    Args:
        path: A YAML file, or None for defaults.
        flags: Nested values from the command line; keys that are None are left out.
        every_model: Nested values from the command line for each model.
        warn: Is given a line for each `KVARN_...` variable that names no setting. Other software may have set it, so
            it is no error.

    Raises:
        ConfigError: A source cannot be read, a key is unknown, a value is wrong, or an extra is needed and
            not installed.
    """
    merged = _merge(_read_yaml(path, warn) if path else {}, _read_environment(warn))
    merged = _merge(merged, _without_none(flags or {}))
    if every_model:
        merged["models"] = _over_models(merged.get("models"), every_model)
    try:
        config = KvarnConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(explain_errors(error)) from None
    if (missing := missing_extra_of(config)) is not None:
        raise ConfigError(missing)
    return config


def _read_yaml(path: Path, warn: Callable[[str], None]) -> dict[str, Any]:
    try:
        loader = _YamlLoader(path.read_text(encoding="utf-8"))
        loader.warn = warn
        loaded = loader.get_single_data()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} must hold a mapping of sections, such as `gateway:`, at its top")
    return loaded


def _read_environment(warn: Callable[[str], None]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        for path, value in read_environment(os.environ, warn):
            for part in reversed(path):
                value = {part: value}
            found = _merge(found, value)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return found


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both_nested = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both_nested else value
    return merged


def _over_models(models: Any, values: dict[str, Any]) -> Any:
    """The models with these values over their own; what is no list of mappings is left to validation."""
    if models is None:
        models = [model.model_dump() for model in KvarnConfig().models]
    if not isinstance(models, (list, tuple)):
        return models
    return [_merge(model, values) if isinstance(model, dict) else model for model in models]


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    kept = {key: _without_none(value) if isinstance(value, dict) else value for key, value in values.items()}
    return {key: value for key, value in kept.items() if value is not None and value != {}}


def explain_errors(error: ValidationError) -> str:
    """One line with each wrong field, where it stands and why."""
    lines = []
    for problem in error.errors(include_url=False):
        where = ".".join(str(part) for part in problem["loc"]) or "configuration"
        what = (
            "is not a known setting"
            if problem["type"] == "extra_forbidden"
            else problem["msg"].removeprefix("Value error, ")
        )
        lines.append(f"{where}: {what}")
    return "; ".join(lines)
