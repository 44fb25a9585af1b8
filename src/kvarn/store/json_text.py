"""JSON as both databases can hold it."""

from __future__ import annotations

import json
import re

_ESCAPE = re.compile(r"\\(?:u0000|.)", re.DOTALL)


def json_text(value: object) -> str:
    """JSON text of plain data. PostgreSQL's text has no NUL character: U+FFFD stands for it, in SQLite as well."""
    text = json.dumps(value)
    return _ESCAPE.sub(_without_nul, text) if "\\u0000" in text else text


def _without_nul(escape: re.Match[str]) -> str:
    return "\\ufffd" if escape[0] == "\\u0000" else escape[0]
