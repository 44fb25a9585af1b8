"""Text of any kind in which each trigger begins a tag, whose inside a schema describes (vLLM's `structural_tag`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from kvarn.grammar.answers import validator
from kvarn.grammar.errors import GrammarError
from kvarn.grammar.text import from_json_schema, joined, literal

MAX_TAGS = 256


class _Structure(msgspec.Struct, forbid_unknown_fields=True):
    begin: str
    schema: dict[str, Any] | bool
    end: str


class _StructuralTag(msgspec.Struct, forbid_unknown_fields=True):
    structures: list[_Structure]
    triggers: list[str]
    type: str = "structural_tag"


def from_structural_tag(value: dict[str, Any], markers: Mapping[str, int]) -> str:
    """The grammar of a structural tag: `structures`, each with `begin`, `schema` and `end`, and `triggers`, each the
    beginning of some `begin`. Raises GrammarError for another form, or a part that matches no trigger."""
    try:
        tag = msgspec.convert(value, _StructuralTag)
    except msgspec.ValidationError as error:
        raise GrammarError(f"a structural tag holds 'structures' and 'triggers': {error}") from None
    if not 1 <= len(tag.structures) <= MAX_TAGS or not tag.triggers or not all(tag.triggers):
        raise GrammarError(f"there must be 1 to {MAX_TAGS} structures, and triggers that are not empty")
    lines: list[str] = []
    names: list[str] = []
    parts: dict[str, str] = {}
    for number, trigger in enumerate(tag.triggers):
        begun = [(place, each) for place, each in enumerate(tag.structures) if each.begin.startswith(trigger)]
        if not begun:
            raise GrammarError(f"no structure begins with the trigger {trigger!r}")
        names.append(f"tag{number}")
        lines += _trigger_rules(number, trigger, markers)
        bodies = " | ".join(f"body{place}_{number}" for place, _ in begun)
        lines.append(f"tag{number}: trigger{number} ({bodies})")
        for place, each in begun:
            rest = literal(each.begin[len(trigger) :], markers)
            lines.append(f"body{place}_{number}: {rest} @inside{place} {literal(each.end, markers)}")
            validator(json.dumps(each.schema))  # first: what follows expects a valid schema
            parts[f"inside{place}"] = from_json_schema(each.schema)
    if len(parts) < len(tag.structures):
        raise GrammarError("a structure begins with none of the triggers")
    lark = f"start: ({' | '.join(names)})* rest\nrest: TEXT\nTEXT: /(.|\\n)*/\n" + "\n".join(lines)
    return joined(lark, **parts)


def _trigger_rules(number: int, trigger: str, markers: Mapping[str, int]) -> list[str]:
    first = next((name for name in markers if trigger.startswith(name)), None)
    if first is not None:
        return [f"trigger{number}: TEXT {literal(trigger, markers)}"]
    return [f"trigger{number}[lazy]: TEXT {literal(trigger, {})}"]
