"""YAML as people write it: `on`, `off`, `yes`, `no` and dates are texts, as in YAML 1.2's core schema."""

from __future__ import annotations

import re

import yaml

_BOOL, _DATE = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp"


class PlainLoader(yaml.SafeLoader):
    """Loader that keeps the key `on` of a fallback and the date `since` of a price as they are written.

    Fields that are true or false take `yes` and `on` all the same: pydantic reads them.
    """


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag not in (_BOOL, _DATE)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
PlainLoader.add_implicit_resolver(_BOOL, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
