"""The operator's own rules: regular expressions that flag a text by themselves.

They are run by RE2 (Cox, "Regular Expression Matching Can Be Simple And Fast", 2007): in time linear in the text,
whatever the expression, so neither a careless rule nor a hostile prompt can hold the server up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import re2

from kvarn.safety.errors import SafetyError

_MAX_MEMORY = 8 << 20  # bytes one expression's automaton may take


class RuleList:
    """Compiled rules. Raises `SafetyError`: one is no regular expression that RE2 knows, or one too large."""

    def __init__(self, rules: Sequence[str]) -> None:
        self._patterns = [_compile(position, rule) for position, rule in enumerate(rules)]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def matches(self, text: str) -> bool:
        encoded = text.encode("utf-8", "replace")
        return any(pattern.search(encoded) is not None for pattern in self._patterns)


def _compile(position: int, rule: str) -> Any:
    options = re2.Options()
    options.max_mem = _MAX_MEMORY
    options.log_errors = False
    try:
        return re2.compile(rule.encode(), options)
    except re2.error as error:
        reason = error.args[0] if error.args else "unknown"
        shown = reason.decode() if isinstance(reason, bytes) else reason
        raise SafetyError(
            f"safety.rules[{position}] ({rule!r}) is not a regular expression of RE2 (no look-around, no back "
            f"references): {shown}"
        ) from None
