"""Settings from environment variables: `KVARN_GATEWAY__PORT=9000` is `gateway.port`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from kvarn.config.gateway import OLD_NAMES
from kvarn.config.schema import KvarnConfig
from kvarn.config.section import Section

PREFIX = "KVARN_"

_OF_KUBERNETES = re.compile(
    r"KVARN(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)"
)
"""Variables that Kubernetes sets in every container beside a service whose name begins with `kvarn`."""
_ADDRESS_OF_KUBERNETES = re.compile(r"(tcp|udp|sctp)://\S+")
"""The value of `KVARN_PORT` (or `KVARN_GATEWAY_PORT`) that it sets."""


_ELSEWHERE = frozenset({"KVARN_ISA", "KVARN_API_KEY"})
"""Variables read where they are used: the kernels' instruction set, and the key that `kvarn serve` asks for and the
other commands send."""


def read_environment(environment: Mapping[str, str], warn: Callable[[str], None]) -> Iterator[tuple[list[str], Any]]:
    """The path and the value of each setting that a variable names: sections, lists and mappings are JSON. `warn` is
    given a line for each variable with our prefix that means nothing here.

    Raises:
        ValueError: A value is not valid JSON.
    """
    settings = dict(_settings(KvarnConfig, PREFIX)) | {f"{PREFIX}GATEWAY__{old.upper()}": False for old in OLD_NAMES}
    for name, value in sorted(environment.items()):  # a section before the settings in it
        if name in settings:
            try:
                yield name.removeprefix(PREFIX).lower().split("__"), json.loads(value) if settings[name] else value
            except ValueError as error:
                raise ValueError(f"the environment variable {name} is not valid JSON: {error}") from None
        elif name.startswith(PREFIX) and not _means_something(name, value):
            last = name.removeprefix(PREFIX).rpartition("__")[2]
            near = sorted(each for each in settings if each.endswith(f"__{last}"))
            near = near or get_close_matches(name, sorted({*settings, *_ELSEWHERE}), n=2, cutoff=0.8)
            hint = f": did you mean {' or '.join(near)}?" if near else " (docs/reference/configuration.md lists them)"
            warn(f"the environment variable {name} names no setting and is ignored{hint}")


def _means_something(name: str, value: str) -> bool:
    """Whether a variable that names no setting is there for a reason."""
    is_address = name.endswith("_PORT") and _ADDRESS_OF_KUBERNETES.match(value)
    return bool(name in _ELSEWHERE or _OF_KUBERNETES.fullmatch(name) or is_address)


def _settings(section: type[Section], prefix: str) -> Iterator[tuple[str, bool]]:
    """The names of all variables of a section and of the sections in it, and whether their values are JSON."""
    for name, field in section.model_fields.items():
        variable = prefix + name.upper()
        parts = (field.annotation, *get_args(field.annotation))
        is_list = get_origin(field.annotation) is tuple
        sections = [part for part in parts if isinstance(part, type) and issubclass(part, Section)]
        yield variable, bool(sections) or any(get_origin(part) in (tuple, dict) for part in parts)
        for inner in () if is_list else sections:  # a list is given as a whole
            yield from _settings(inner, f"{variable}__")
