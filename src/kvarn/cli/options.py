"""From the flags of `kvarn serve` to the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvarn.config.load import ConfigError, load_config
from kvarn.config.schema import KvarnConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What the command line said; None where it said nothing."""

    model: str | None = None
    named: tuple[str, ...] = ()
    config: Path | None = None
    host: str | None = None
    port: int | None = None
    api_server_count: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    kernels: str | None = None
    packed_cache: Path | None = None
    max_context_length: int | None = None
    kv_cache_gib: float | None = None
    log_level: str | None = None


def configure(options: ServeOptions) -> KvarnConfig:
    """The configuration with the flags over it. Models on the command line take the place of the configured ones;
    the flags about models hold for all that are served.

    Raises:
        ConfigError: Something cannot be used; the message says what to change.
    """
    flags: dict[str, Any] = {
        "gateway": {"host": options.host, "port": options.port, "api_server_count": options.api_server_count},
        "log_level": options.log_level,
    }
    models = _models_of(options)
    if models:
        flags["models"] = models
    config = load_config(options.config, flags)
    changes = {
        "dtype": options.dtype,
        "quantization": options.quantization,
        "kv_cache_dtype": options.kv_cache_dtype,
        "kernels": options.kernels,
        "packed_cache": None if options.packed_cache is None else str(options.packed_cache.expanduser().absolute()),
        "max_context_length": options.max_context_length,
        "kv_cache_gib": options.kv_cache_gib,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    if not given:
        return config
    flags["models"] = [model.model_dump() | given for model in config.models]
    return load_config(options.config, flags)


def _models_of(options: ServeOptions) -> list[dict[str, Any]]:
    models = []
    if options.model is not None:
        models.append({"name": _name_of(options.model), "path": options.model})
    for text in options.named:
        name, separator, path = text.partition("=")
        if not (name and separator and path):
            raise ConfigError(f"--model {text}: write it as NAME=PATH, such as --model chat=/models/llama")
        models.append({"name": name, "path": path})
    return models


def _name_of(path: str) -> str:
    """A directory's own name; a hub id or a packaged model as it is."""
    directory = Path(path).expanduser()
    return directory.resolve().name if directory.is_dir() else path
