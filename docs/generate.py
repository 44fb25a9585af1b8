"""Write the generated pages of the documentation; `--check` only says whether they are current.

Usage: python docs/generate.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from kvarn.config.documentation import field_documents
from kvarn.config.schema import KvarnConfig
from kvarn.config.section import Section

HERE = Path(__file__).parent
INTRODUCTION = """\
# Configuration reference

Generated from `src/kvarn/config/` by `make docs`; do not edit by hand.

Kvarn needs no configuration: `kvarn serve` starts with the defaults below. Sources, later over earlier: a YAML
file (`kvarn serve --config kvarn.yaml`), environment variables (`KVARN_GATEWAY__PORT=9000` is `gateway.port`), flags.
Unknown keys of the file are errors; an environment variable that names no setting is a warning. `kvarn config` prints
the configuration in force. [The command line](cli.md) lists the flags and their settings.

```yaml
models:
  - name: chat
    path: kvarn-demo
    engine:
      token_budget: 1024
gateway:
  port: 9000
```
"""


def type_name(annotation: Any) -> str:
    """How a reader would write the type of a field."""
    if annotation is type(None):
        return "null"
    if get_origin(annotation) is None:
        return getattr(annotation, "__name__", str(annotation))
    if "Literal" in str(get_origin(annotation)):
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) is Annotated:
        return type_name(get_args(annotation)[0])
    if get_origin(annotation) is tuple:
        return f"list of {type_name(get_args(annotation)[0])}"
    return " or ".join(type_name(part) for part in get_args(annotation))


def default_of(field: Any) -> str:
    """The default as a table cell."""
    if field.is_required():
        return "required"
    if isinstance(field.default, Section):
        return "see below"
    if field.default in ((), "") or field.default_factory is not None:
        return "none"
    if isinstance(field.default, tuple) and field.default and isinstance(field.default[0], Section):
        return "the demo model"
    return f"`{field.default}`" if field.default is not None else "none"


def bounds_of(field: Any) -> str:
    """Limits of a number, such as `>= 1`."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": "length >="}
    parts = [
        f"{sign} {getattr(mark, name)}"
        for mark in field.metadata
        for name, sign in signs.items()
        if hasattr(mark, name)
    ]
    return ", ".join(parts)


def section_page(path: str, section: type[Section]) -> list[str]:
    """A heading and a table for one section."""
    documents = field_documents(section)
    lines = [f"## `{path}`" if path else "## Top level", "", (section.__doc__ or "").strip(), ""]
    lines += ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for name, field in section.model_fields.items():
        kind = " ".join(filter(None, [type_name(field.annotation), bounds_of(field)]))
        lines.append(f"| `{name}` | {kind} | {default_of(field)} | {documents[name]} |")
    return [*lines, ""]


def sections_under(path: str, section: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    """A section and all that stand in it, with their paths."""
    yield path, section
    for name, field in section.model_fields.items():
        listed = get_origin(field.annotation) is tuple
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, Section):
                own = f"{name}[]" if listed else name
                yield from sections_under(f"{path}.{own}" if path else own, part)


def configuration_page() -> str:
    """The whole of docs/configuration.md."""
    lines = [INTRODUCTION]
    for path, section in sections_under("", KvarnConfig):
        lines += section_page(path, section)
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Write or check each page; 1 when a page is out of date."""
    page, text = HERE / "configuration.md", configuration_page()
    if "--check" in sys.argv:
        current = page.exists() and page.read_text(encoding="utf-8") == text
        if not current:
            print(f"{page.name} is out of date: run `make docs`")
        return 0 if current else 1
    page.write_text(text, encoding="utf-8")
    print(f"wrote {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
