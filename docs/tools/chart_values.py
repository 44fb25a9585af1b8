"""The page of the Helm chart's values: its values.yaml, whose comments say what each is for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

VALUES = Path(__file__).resolve().parents[2] / "deploy/chart/kvarn/values.yaml"
_KEY = re.compile(r"( *)(\w+):(.*)")
_OBJECTS = frozenset({"models", "resources"})
"""Values that are one whole although they have parts."""
_INTRODUCTION = """\
# Values of the Helm chart

Generated from `deploy/chart/kvarn/values.yaml` by `make docs`; do not edit by hand.

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
