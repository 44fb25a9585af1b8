"""docs/reference/errors.md tells of each error code that the server may answer with, and of no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/errors.md"
PACKAGES = (
    "answers",
    "batches",
    "catalog",
    "evaluations",
    "external",
    "gateway",
    "identity",
    "responses",
    "retrieval",
    "tools",
    "wire",
)
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / "src/kvarn" / package).rglob("*.py"))]
POSITIONS = {
    "invalid_request": 2,
    "unavailable": 1,
    "_unavailable": 1,
    "_add_fault": 0,
    "UnreadableFileError": 0,
    "RefusedError": 1,
}
"""Functions that take a code, and at which place."""
TABLES = ("_CODES", "_REFUSALS", "_UNANSWERED")
"""Tables in which exceptions or states have codes."""
NO_CODES = {"error", "not_ready"}  # reasons for a fallback, in a table of that name
CODE = re.compile(r"[a-z]+(_[a-z]+)+|conflict|interrupted|timeout|draining|overloaded")


def _texts(node: ast.AST, constants: dict[str, str]) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value
        elif isinstance(each, ast.Name | ast.Attribute):
            yield constants.get(each.id if isinstance(each, ast.Name) else each.attr, "")


def _in_calls(tree: ast.AST, constants: dict[str, str]) -> Iterator[str]:
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            named = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
            for node in [*named, *call.args[POSITIONS.get(name, len(call.args)) :][:1]]:
                yield from _texts(node, constants)


def codes() -> set[str]:
    """Every code in the sources: an argument of what makes errors, or a value of a table of them."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES]
    constants, found = {}, set()
    for node in (node for tree in trees for node in tree.body):
        target = getattr(node, "target", None) or next(iter(getattr(node, "targets", [])), None)
        if isinstance(target, ast.Name) and isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                constants[target.id] = node.value.value
            elif target.id in TABLES and isinstance(node.value, ast.Dict):
                found |= {text for value in node.value.values for text in _texts(value, {})}
    for tree in trees:
        found |= set(_in_calls(tree, constants))
    return {text for text in found if CODE.fullmatch(text)} - NO_CODES - {"invalid_request_error", "rate_limit_error"}


def test_every_code_is_explained_and_every_explained_code_exists() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    explained = [code for row in rows for code in re.findall(r"`(\w+)`", row)]
    assert len(explained) == len(set(explained))
    assert codes() - set(explained) == set(), "add what causes it and what to do to docs/reference/errors.md"
    assert set(explained) - codes() == set(), "no code of the server"
