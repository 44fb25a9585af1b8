"""Errors of grammars."""

from __future__ import annotations


class GrammarError(ValueError):
    """A grammar, or a schema, that cannot be enforced; the message says what of it."""
