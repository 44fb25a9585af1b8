"""YAML in the words of its version 1.2: `off`, `on`, `yes` and `no` are texts, and so is a day such as 2026-01-01."""

from __future__ import annotations

import re
from typing import Any

import yaml


class YamlLoader(yaml.SafeLoader):
    """PyYAML's safe loader reads YAML 1.1, where the key `off` is false and a day is a date."""


_loose = {"tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp"}
YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _loose]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"
)


def parse_yaml(text: str) -> Any:
    """Value of one YAML document. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=YamlLoader)  # a safe loader: it makes no objects
