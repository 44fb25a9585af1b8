"""Settings from environment variables: `KVARN_GATEWAY__PORT=9000` is `gateway.port`; `KVARN_STORE__URL_FILE=/run/url`:
`store.url` is read from that file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from kvarn.config.gateway import OLD_NAMES
from kvarn.config.schema import KvarnConfig
from kvarn.config.section import Section
from kvarn.config.setting_files import read_setting

PREFIX = "KVARN_"
FILE = "_FILE"
"""Ending of a variable that names the file with the value of the setting before it."""

_OF_KUBERNETES = re.compile(
    r"KVARN(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)"
)
"""Variables that Kubernetes sets in every container beside a service whose name begins with `kvarn`."""
_ADDRESS_OF_KUBERNETES = re.compile(r"(tcp|udp|sctp)://\S+")
"""The value of `KVARN_PORT` (or `KVARN_GATEWAY_PORT`) that it sets."""


API_KEY = "KVARN_API_KEY"
SERVER_URL = "KVARN_URL"
_ELSEWHERE = frozenset({"KVARN_ISA", API_KEY, API_KEY + FILE, SERVER_URL})
"""Variables read where they are used: the kernels' instruction set, the key that `kvarn serve` asks for and the other
commands send, the server that those ask."""


@dataclass(frozen=True, slots=True)
class _Variable:
    is_json: bool = False
    is_secret: bool = False


def read_environment(environment: Mapping[str, str], warn: Callable[[str], None]) -> Iterator[tuple[list[str], Any]]:
    """The path and the value of each setting that a variable names: sections, lists and mappings are JSON. `warn` is
    given a line for each variable with our prefix that means nothing here, and for a secret that everybody can read.

    Raises:
        ValueError: A value is not valid JSON, or the file with it cannot be read.
    """
    settings = dict(_settings(KvarnConfig, PREFIX))
    settings |= {f"{PREFIX}GATEWAY__{old.upper()}": _Variable() for old in OLD_NAMES}
    for name, value in sorted(environment.items()):  # a section before the settings in it
        setting = name if name in settings else name.removesuffix(FILE)
        if setting in settings:
            if setting != name:
                value = _in_file(environment, setting, warn if settings[setting].is_secret else None)
            try:
                path = setting.removeprefix(PREFIX).lower().split("__")
                yield path, json.loads(value) if settings[setting].is_json else value
            except ValueError as error:
                raise ValueError(f"the environment variable {name} is not valid JSON: {error}") from None
        elif name.startswith(PREFIX) and not _means_something(name, value):
            last = name.removeprefix(PREFIX).rpartition("__")[2]
            near = sorted(each for each in settings if each.endswith(f"__{last}"))
            near = near or get_close_matches(name, sorted({*settings, *_ELSEWHERE}), n=2, cutoff=0.8)
            hint = f": did you mean {' or '.join(near)}?" if near else " (docs/reference/configuration.md lists them)"
            warn(f"the environment variable {name} names no setting and is ignored{hint}")


def read_api_key(environment: Mapping[str, str], warn: Callable[[str], None]) -> str:
    """The key of `KVARN_API_KEY`, or in the file of `KVARN_API_KEY_FILE`; empty where there is none. Raises
    `ValueError`: the file cannot be read."""
    key = _in_file(environment, API_KEY, warn) if API_KEY + FILE in environment else environment.get(API_KEY, "")
    return key.strip()


def _in_file(environment: Mapping[str, str], setting: str, warn: Callable[[str], None] | None) -> str:
    if setting in environment:
        raise ValueError(f"the environment variables {setting} and {setting + FILE} are both set: keep one")
    return read_setting(environment[setting + FILE], setting + FILE, warn)


def _means_something(name: str, value: str) -> bool:
    """Whether a variable that names no setting is there for a reason."""
    is_address = name.endswith("_PORT") and _ADDRESS_OF_KUBERNETES.match(value)
    return bool(name in _ELSEWHERE or _OF_KUBERNETES.fullmatch(name) or is_address)


def _settings(section: type[Section], prefix: str) -> Iterator[tuple[str, _Variable]]:
    """The names of all variables of a section and of the sections in it, and how their values are read."""
    for name, field in section.model_fields.items():
        variable = prefix + name.upper()
        parts = (field.annotation, *get_args(field.annotation))
        is_list = get_origin(field.annotation) is tuple
        sections = [part for part in parts if isinstance(part, type) and issubclass(part, Section)]
        is_json = bool(sections) or any(get_origin(part) in (tuple, dict) for part in parts)
        yield variable, _Variable(is_json, is_secret=not field.repr)
        for inner in () if is_list else sections:  # a list is given as a whole
            yield from _settings(inner, f"{variable}__")
