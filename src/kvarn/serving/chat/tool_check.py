"""Whether a finished call is what its tool asks for. Nothing is changed: the client is told."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


def complaint(index: int, name: str, arguments: str, required: Sequence[str]) -> str | None:
    """What is wrong with the arguments (JSON text) of call number `index`; None where nothing is.

    `required` are the properties that the tool's schema says they must have.
    """
    where = f"Tool call {index} ({name})"
    try:
        parsed = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return f"{where}: its arguments are not valid JSON."
    if not isinstance(parsed, dict):
        return f"{where}: its arguments are not a JSON object."
    missing = [each for each in required if each not in parsed]
    return f"{where}: its arguments lack {', '.join(map(repr, missing))}." if missing else None
