"""Logs: one line an event, `key=value`, to standard error. Readable by a person, parsed by every log collector."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

_OWN_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message", "taskName"}
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class KeyValueFormatter(logging.Formatter):
    """Renders a record as `time=... level=... logger=... msg=...` and the fields given in `extra`.

    A traceback goes into the one field `traceback`, its line ends escaped, so that an event is always one line.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        fields.update((key, value) for key, value in record.__dict__.items() if key not in _OWN_FIELDS)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return " ".join(f"{key}={_quote(value)}" for key, value in fields.items())


def configure_logging(level: str, stream: TextIO | None = None) -> None:
    """Send the whole process's logs to `stream` (standard error) from `level` on. May be called again.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        stream: Where the lines go.

    Raises:
        ValueError: The level is unknown.
    """
    if level not in _LEVELS:
        raise ValueError(f"unknown log level {level!r}: use one of {', '.join(_LEVELS)}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=_LEVELS[level], handlers=[handler], force=True)


def _quote(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if text and text.isprintable() and not any(character in text for character in ' "=\\'):
        return text
    escaped = (
        text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    )
    printable = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped)
    return f'"{printable}"'
