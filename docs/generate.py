"""Write the generated pages of the documentation, the alert rules and the Grafana boards; `--check` only says whether
they are current.

Usage: python docs/generate.py [--check]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from tools.device_table import devices_page
from tools.first_settings import first_settings
from tools.operations import operations_page

from kvarn.config.documentation import field_documents
from kvarn.config.schema import KvarnConfig
from kvarn.config.section import Section
from kvarn.observe.alerts.prometheus import rules_file
from kvarn.observe.alerts.rules import RULES, Rule, promql_duration

ROOT = Path(__file__).resolve().parent.parent
GRAFANA = "deploy/grafana"
INTRODUCTION = """\
# Configuration reference

<!-- Generated from src/kvarn/config/ by `make docs`; do not edit by hand. -->

Kvarn needs no configuration: `kvarn serve` starts with the defaults below. Sources, later over earlier: a YAML
file (`kvarn serve --config kvarn.yaml`), environment variables (`KVARN_GATEWAY__PORT=9000` is `gateway.port`), flags.
Unknown keys of the file are errors; an environment variable that names no setting is a warning. `kvarn config` prints
the configuration in force, without its secrets. [The command line](cli.md) lists the flags and their settings.

**Secrets from files.** Each variable may end in `_FILE` and name a file with the value:
`KVARN_STORE__URL_FILE=/run/secrets/url`. In the YAML file, `!file /run/secrets/url` stands for a value. The end of the
last line is left out. Variables in the path are replaced, so `KVARN_API_KEY_FILE='$CREDENTIALS_DIRECTORY/api-key'` is a
credential of systemd. Files are read at the start.

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
    if get_origin(annotation) is dict:
        return "mapping of {} to {}".format(*map(type_name, get_args(annotation)))
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


def linked(text: str) -> str:
    """A text whose names of pages are links with the titles of these pages."""

    def link(name: re.Match[str]) -> str:
        title = (ROOT / name[0]).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        return f"[{title}](../{name[1]})"

    return re.sub(r"docs/([\w/-]+\.md)", link, text)


def section_page(path: str, section: type[Section]) -> list[str]:
    """A heading and a table for one section."""
    documents = field_documents(section)
    lines = [f"## `{path}`" if path else "## Top level", "", linked(section.__doc__ or "").strip(), ""]
    lines += ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for name, field in section.model_fields.items():
        kind = " ".join(filter(None, [type_name(field.annotation), bounds_of(field)]))
        lines.append(f"| `{name}` | {kind} | {default_of(field)} | {linked(documents[name])} |")
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
    """The whole of docs/reference/configuration.md."""
    lines = [INTRODUCTION, *first_settings()]
    for path, section in sections_under("", KvarnConfig):
        lines += section_page(path, section)
    return "\n".join(lines).rstrip() + "\n"


RUNBOOK = """\
# Runbook of the alerts

<!-- Generated from src/kvarn/observe/alerts/rules.py by `make docs`; do not edit by hand. -->

Each alert has a section; the links of notifications lead here. [Monitoring](monitoring.md) tells how alerts reach you.
P1: users are hurt now. P2: a part is lost, or users will be hurt. P3: this week.
"""


def runbook_page() -> str:
    """The whole of docs/operate/runbook.md."""
    return RUNBOOK + "".join(map(runbook_section, RULES))


def runbook_section(rule: Rule) -> str:
    """What one alert means, where to look first, what to do."""
    held = f", for {promql_duration(rule.for_s)}" if rule.for_s else ""
    return f"""
## {rule.name}

**{rule.title}** ({rule.severity.value}{held})

{rule.meaning}

* First look: {rule.first_look}
* To do: {rule.remedy}

```promql
{rule.promql}
```
"""


def generated_files() -> dict[Path, str]:
    """The text of each generated file, by its path in the repository."""
    sys.path.insert(0, str(ROOT / GRAFANA))
    from tools.chart_values import values_page, values_schema

    from boards import board_files  # a folder of files for operators, no package

    return {
        Path("docs/reference/configuration.md"): configuration_page(),
        Path("docs/reference/devices.md"): devices_page(),
        Path("docs/reference/operations.md"): operations_page(),
        Path("docs/operate/runbook.md"): runbook_page(),
        Path("docs/reference/chart.md"): values_page(),
        Path("deploy/chart/kvarn/values.schema.json"): values_schema(),
        Path("deploy/prometheus/kvarn.rules.yml"): rules_file(),
        **{Path(GRAFANA) / name: text for name, text in board_files().items()},
    }


def main() -> int:
    """Write or check each file; 1 when one is out of date."""
    stale = 0
    for path, text in generated_files().items():
        file = ROOT / path
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if "--check" in sys.argv:
            print(f"{path} is out of date: run `make docs`")
        else:
            file.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
