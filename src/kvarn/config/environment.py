"""Which environment variables name settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import get_args, get_origin

from kvarn.config.schema import KvarnConfig
from kvarn.config.section import Section

PREFIX = "KVARN_"

_OF_KUBERNETES = re.compile(
    r"KVARN(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)"
)
"""What Kubernetes sets in every container beside a service whose name begins with `kvarn`."""
_ADDRESS_OF_KUBERNETES = re.compile(r"(tcp|udp|sctp)://\S+")
"""The value of `KVARN_PORT` (or `KVARN_GATEWAY_PORT`) that it sets."""


def known_variables(
    environment: Mapping[str, str], elsewhere: Collection[str], warn: Callable[[str], None]
) -> Iterator[str]:
    """The variables that name a setting.

    Args:
        environment: All variables.
        elsewhere: Names that mean something but are no settings.
        warn: Is given a line for each variable with our prefix that means nothing here.
    """
    settings = set(_settings(KvarnConfig, PREFIX))
    for name, value in environment.items():
        if not name.startswith(PREFIX) or name in elsewhere:
            continue
        if name in settings or any(name.startswith(f"{each}__") for each in settings if each.endswith("__SETTINGS")):
            yield name
        elif not (_OF_KUBERNETES.fullmatch(name) or (name.endswith("_PORT") and _ADDRESS_OF_KUBERNETES.match(value))):
            last = name.removeprefix(PREFIX).rpartition("__")[2]
            near = sorted(each for each in settings if each.endswith(f"__{last}"))
            near = near or get_close_matches(name, sorted({*settings, *elsewhere}), n=2, cutoff=0.8)
            hint = f": did you mean {' or '.join(near)}?" if near else " (docs/configuration.md lists them)"
            warn(f"the environment variable {name} names no setting and is ignored{hint}")


def _settings(section: type[Section], prefix: str) -> Iterator[str]:
    """The names of all variables of a section and of the sections in it."""
    for name, field in section.model_fields.items():
        variable = prefix + name.upper()
        yield variable
        is_list = get_origin(field.annotation) is tuple  # given as JSON, as a whole
        for part in () if is_list else (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, Section):
                yield from _settings(part, f"{variable}__")
