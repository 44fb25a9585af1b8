"""The configuration: what is unknown, contradictory or open to others."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from kvarn.config.load import ConfigError, load_config
from kvarn.config.schema import KvarnConfig
from kvarn.config.section import Section
from kvarn.config.yaml import YamlLoader
from kvarn.doctor.finding import Finding, error, good, warning
from kvarn.identity.open_server import auth_mode, is_loopback
from kvarn.text.checkpoint import local_checkpoint
from kvarn.text.errors import CheckpointError

_NEEDED_FILES = ("client_secret_file", "api_key_file", "encryption_key_file")
_PASSWORD_IN_URL = re.compile(r"://[^/@:]*:[^@]+@")


def read_settings(path: Path | None) -> tuple[KvarnConfig | None, list[Finding]]:
    """The configuration, None where it cannot be used, and what is wrong with its sources."""
    warnings: list[str] = []
    source = "defaults and the environment" if path is None else str(path)
    try:
        config = load_config(path, warn=warnings.append)
    except ConfigError as failure:
        return None, [error("settings", str(failure), "docs/reference/configuration.md lists all settings")]
    found = [warning("environment", text, "unset it, or write it as the configuration has it") for text in warnings]
    return config, [good("settings", f"{source}: no unknown setting"), *found]


def check_access(config: KvarnConfig) -> Finding:
    """Reach of the server, and whether it asks for keys."""
    where = f"{config.gateway.host}:{config.gateway.port}"
    try:
        mode = auth_mode(config)
    except ConfigError as failure:
        return error("access", str(failure))
    if mode == "open":
        return good("access", f"{where}, from this machine only, without keys")
    if is_loopback(config.gateway.host):
        return good("access", f"{where}, from this machine only, with keys")
    if config.gateway.ssl_certfile is None:
        return warning(
            "access",
            f"{where}, with keys, but in plain HTTP: keys and prompts can be read on the way",
            "set gateway.ssl_certfile, or put a proxy that speaks HTTPS before it and let only that reach the port",
        )
    return good("access", f"{where}, with keys, over HTTPS")


def check_certificate(config: KvarnConfig) -> Finding | None:
    """Whether the certificate and its key can be read and belong together; None where there is none."""
    certificate, key = config.gateway.ssl_certfile, config.gateway.ssl_keyfile
    if certificate is None:
        return None
    try:
        # Without a password nobody is asked for one: the server could not be, either.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except OSError as failure:
        names = " and ".join(filter(None, (certificate, key)))
        return error("certificate", f"{names}: {failure.strerror or failure}", "name PEM files that belong together")
    return good("certificate", certificate)


def check_secrets(path: Path) -> Finding | None:
    """Whether a file with keys or passwords can be read by other users; None where there are none in it."""
    names = sorted(set(_secrets_in(yaml.load(path.read_text(encoding="utf-8"), _Values))))
    if not names:
        return None
    if path.stat().st_mode & 0o077:
        return warning("secrets", f"other users may read {', '.join(names)} in {path}", f"chmod 600 {path}")
    return good("secrets", f"only their owner reads {', '.join(names)} in {path}")


class _Values(YamlLoader):
    """Values that stand in the file: those that a tag takes from elsewhere are left out."""


_Values.add_multi_constructor("!", lambda _loader, _suffix, _node: None)


def _secrets_in(value: Any, name: str = "", *, secret: bool = False) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _secrets_in(inner, name if secret else str(key), secret=secret or key in _SECRET_NAMES)
    elif isinstance(value, list):
        for inner in value:
            yield from _secrets_in(inner, name, secret=secret)
    elif isinstance(value, str) and (_PASSWORD_IN_URL.search(value) if "://" in value else secret and value):
        yield name


def _secret_names(section: type[Section]) -> Iterator[str]:
    """Settings that are not shown, in a section and those in it."""
    for name, field in section.model_fields.items():
        if not field.repr:
            yield name
        for inner in _sections_in(field.annotation):
            yield from _secret_names(inner)


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _sections_in(inner)


_SECRET_NAMES = frozenset(_secret_names(KvarnConfig))


def check_files(config: KvarnConfig) -> list[Finding]:
    """Files that the server needs to start and cannot read; others it makes where they are missing."""
    named = dict(_files_of(config.model_dump(mode="json"), ""))
    missing = {name: path for name, path in named.items() if not _is_readable(Path(path).expanduser())}
    return [error("files", f"{name} names {path}, which cannot be read") for name, path in missing.items()]


def _files_of(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _files_of(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _files_of(inner, f"{path}[{number}]")
    elif isinstance(value, str) and path.endswith(_NEEDED_FILES):
        yield path, value


def _is_readable(path: Path) -> bool:
    try:
        with path.open("rb"):
            return True
    except OSError:
        return False


def check_models(config: KvarnConfig) -> list[Finding]:
    """Checkpoints of the models: found here, or to be downloaded."""
    found = []
    for model in config.models:
        if model.external is not None:
            found.append(good("model", f"{model.name}: run by another server"))
            continue
        try:
            directory = local_checkpoint(model.path)
        except CheckpointError as failure:
            found.append(error("model", f"{model.name}: {failure}"))
        else:
            origin = f"{model.path}, downloaded at the start" if directory is None else str(directory)
            found.append(good("model", f"{model.name}: {origin}"))
    return found


def check_contradictions(config: KvarnConfig, cores: int) -> list[Finding]:
    """Settings that are allowed by themselves and do not fit each other, or this machine."""
    gateway, found = config.gateway, []
    if gateway.max_requests > gateway.max_connections:
        found.append(
            warning(
                "settings",
                f"gateway.max_requests ({gateway.max_requests}) is more than gateway.max_connections "
                f"({gateway.max_connections})",
                "raise the second: each request has a connection",
            )
        )
    if gateway.api_server_count > cores:
        found.append(
            warning(
                "settings",
                f"gateway.api_server_count is {gateway.api_server_count}, and {cores} cores are usable",
                "lower it: gateway processes and engines take the cores from each other",
            )
        )
    if config.limits.when_away == "closed" and config.limits.redis_url is None:
        found.append(warning("settings", "limits.when_away is set without limits.redis_url", "leave it out"))
    return found
