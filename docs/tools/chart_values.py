"""The page of the Helm chart's values, from the comments of values.yaml; names of Kvarn's settings in its schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml

from kvarn.config.gateway import OLD_NAMES
from kvarn.config.model import ModelConfig
from kvarn.config.schema import KvarnConfig
from kvarn.config.section import Section

CHART = Path(__file__).resolve().parents[2] / "deploy/chart/kvarn"
VALUES = CHART / "values.yaml"
_OF_THE_CHART = ("models", "data_dir")
"""Settings that have a value of their own, or none."""
_LINE = 116
_KEY = re.compile(r"( *)(\w+):(.*)")
_OBJECTS = frozenset({"models", "resources"})
"""Values that are one whole although they have parts."""
_INTRODUCTION = """\
# Values of the Helm chart

<!-- Generated from deploy/chart/kvarn/values.yaml by `make docs`; do not edit by hand. -->

The [page on Kubernetes](../operate/kubernetes.md) explains them by task. Helm refuses a value that is not in this list.

| value | default | meaning |
|---|---|---|
"""


def values_page() -> str:
    """The whole of docs/reference/chart.md."""
    rows = [f"| `{path}` | {_shown(default)} | {meaning} |" for path, default, meaning in documented_values()]
    return _INTRODUCTION + "\n".join(rows) + "\n"


def documented_values() -> Iterator[tuple[str, Any, str]]:
    """Path, default and comment of each value. Raises ValueError: one has no comment."""
    text = VALUES.read_text(encoding="utf-8")
    defaults, parents, comment = yaml.safe_load(text), list[str](), ""
    whole_at: int | None = None  # indentation of the object whose parts are read
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if whole_at is not None and line.strip() and indent > whole_at:
            continue
        if line.lstrip().startswith("# "):
            comment = line.strip().removeprefix("# ")
        elif (found := _KEY.fullmatch(line)) is not None:
            path = [*parents[: indent // 2], found[2]]
            is_section = not found[3].strip() and found[2] not in _OBJECTS
            parents, whole_at = path, None if found[3].strip() or is_section else indent
            if not is_section:
                if not comment:
                    raise ValueError(f"{'.'.join(path)} of {VALUES.name} has no comment that says what it is for")
                yield ".".join(path), _at(defaults, path), comment
            comment = ""


def _at(values: Any, path: list[str]) -> Any:
    for part in path:
        values = values[part]
    return values


def _shown(default: Any) -> str:
    return "" if default in ("", [], {}) else f"`{json.dumps(default)}`"


def values_schema() -> str:
    """The chart's values.schema.json, with the names of Kvarn's settings as they are now: a misspelt one would end the
    server when it is replaced. What they may hold is left to Kvarn."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    config, model = _names(KvarnConfig), _names(ModelConfig)
    config["properties"] |= dict.fromkeys(_OF_THE_CHART, False)
    config["properties"]["gateway"]["properties"] |= {name: {} for name in OLD_NAMES}
    model["properties"]["name"] = {"type": "string", "minLength": 1}
    schema["definitions"]["config"] = {"type": "object", **config}
    schema["definitions"]["model"] = {"type": "object", "required": ["name"], **model}
    return _json(schema) + "\n"


def _names(section: type[Section]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        parts = list(_parts(field.annotation))
        inner = next((_names(part) for part in parts if isinstance(part, type) and issubclass(part, Section)), {})
        is_list = inner and any(get_origin(part) is tuple for part in parts)
        properties[name] = {"items": inner} if is_list else inner
    return {"additionalProperties": False, "properties": properties}


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def _json(value: Any, indent: int = 0) -> str:
    """Indented JSON whose short objects stand on one line."""
    line = json.dumps(value)
    if not isinstance(value, dict | list) or len(line) + indent <= _LINE:
        return line
    margin = " " * (indent + 2)
    if isinstance(value, list):
        inner = [_json(each, indent + 2) for each in value]
    else:
        inner = [f"{json.dumps(key)}: {_json(each, indent + 2)}" for key, each in value.items()]
    start, end = "[]" if isinstance(value, list) else "{}"
    return f"{start}\n{margin}" + f",\n{margin}".join(inner) + f"\n{' ' * indent}{end}"
