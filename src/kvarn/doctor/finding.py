"""Result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Whether the server works with what was found: it does, less well than it could, or not at all."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """Detail of what was found, in a line, and where it is not well, advice: what to do."""

    check: str
    level: Level
    detail: str
    advice: str = ""


def good(check: str, detail: str) -> Finding:
    return Finding(check, Level.OK, detail)


def warning(check: str, detail: str, advice: str) -> Finding:
    return Finding(check, Level.WARNING, detail, advice)


def error(check: str, detail: str, advice: str = "") -> Finding:
    return Finding(check, Level.ERROR, detail, advice)
