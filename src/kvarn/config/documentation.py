"""The documentation of settings: the docstring under each field."""

from __future__ import annotations

import ast
import inspect
from functools import cache

from kvarn.config.section import Section


@cache
def field_documents(section: type[Section]) -> dict[str, str]:
    """The docstring under each field of a section, in one line, by field name."""
    (definition,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found
