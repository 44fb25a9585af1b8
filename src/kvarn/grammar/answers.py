"""Finished answers against the schemas that they were kept to."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import jsonschema_rs

from kvarn.grammar.asked import Answered, Checked
from kvarn.grammar.errors import GrammarError


@lru_cache(maxsize=4)  # one may keep some hundred MB
def validator(schema: str) -> Callable[[Any], bool]:
    """Says whether a value is valid by a schema, given as JSON. Formats are asserted; no other document is fetched.
    Raises GrammarError where it is no valid schema."""
    try:
        return jsonschema_rs.validator_for(json.loads(schema), validate_formats=True, offline=True).is_valid
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise GrammarError(f"it is not a valid JSON schema: {str(error).splitlines()[0][:200]}") from None


def check_answer(answered: Answered) -> Checked:
    for schema, text in answered.parts:
        try:
            if not validator(schema)(exact(text)):
                return Checked("it is not valid by its schema")
        except (ValueError, RecursionError) as error:
            return Checked(f"it is not JSON: {str(error)[:200]}")
    return Checked(None)


def exact(text: str) -> Any:
    """The value of a JSON text, decimals as they are written. Raises ValueError."""
    return json.loads(text, parse_float=_decimal)


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent that even decimals cannot have
        return Decimal("0" if "e-" in text.lower() else "-1e999" if text.startswith("-") else "1e999")
