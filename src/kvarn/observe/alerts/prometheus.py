"""The alert rules as a file of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from kvarn.observe.alerts.rules import RULES, Rule, promql_duration

HEADER = "# Generated from src/kvarn/observe/alerts/rules.py by `make docs`; do not edit by hand.\n"
_SUBJECT = "{{ range $name, $each := $labels }}, {{ $name }} {{ $each }}{{ end }}"
_FORMATS = {"ratio": "$value | humanizePercentage", "seconds": "$value | humanizeDuration", "count": "$value"}


def rules_file(rules: Iterable[Rule] = RULES, runbook: str = "docs/operate/runbook.md") -> str:
    """The YAML that `rule_files` names. `runbook`: address of the page that links lead to."""
    entries = [_entry(rule, runbook) for rule in rules]
    groups = {"groups": [{"name": "kvarn", "rules": entries}]}
    return HEADER + yaml.safe_dump(groups, sort_keys=False, width=100_000, allow_unicode=True)


def _entry(rule: Rule, runbook: str) -> dict[str, Any]:
    return {
        "alert": rule.name,
        "expr": rule.promql,
        "for": promql_duration(rule.for_s),
        "labels": {"severity": rule.severity.value},
        "annotations": {
            "summary": f"{rule.title}: {{{{ {_FORMATS[rule.unit]} }}}}{_SUBJECT}",
            "description": rule.meaning,
            "runbook_url": f"{runbook}#{rule.anchor}",
        },
    }
