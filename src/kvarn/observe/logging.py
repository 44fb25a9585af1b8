"""Logs: one line an event, `key=value`, to standard error. Readable by a person, parsed by every log collector.

Personal data and secrets are taken out of every line, whatever wrote it: see `redaction`.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from kvarn.observe.redaction import redact

_OWN_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message", "taskName"}
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_SEPARATOR = "\x1f"


class KeyValueFormatter(logging.Formatter):
    """Renders a record as `time=... level=... logger=... msg=...` and the fields given in `extra`, redacted.

    A traceback goes into the one field `traceback`, its line ends escaped, so that an event is always one line.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = f"time={moment.replace('+00:00', 'Z')} level={record.levelname.lower()} logger={_quote(record.name)}"
        fields: dict[str, Any] = {"msg": record.getMessage()}
        fields.update((key, value) for key, value in record.__dict__.items() if key not in _OWN_FIELDS)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        # All at once: looking through one text is cheaper than through ten, and a separator (white space to the
        # patterns) keeps apart what does not belong together.
        shown = redact(_SEPARATOR.join(_text(value) for value in fields.values())).split(_SEPARATOR)
        return " ".join([head, *(f"{key}={_quote(text)}" for key, text in zip(fields, shown, strict=True))])


class _Handler(logging.StreamHandler[TextIO]):
    """Writes lines; one that cannot be rendered is told by where it stands, without what it was to say."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        """Tell that a line is lost: the arguments that the library would print may be anybody's words."""
        error = sys.exception()
        where = f"{record.pathname}:{record.lineno}"
        self.stream.write(f'level=error logger=kvarn.observe msg="a log line failed" where="{where}" ')
        self.stream.write(f"error={type(error).__name__}\n")


def configure_logging(level: str, stream: TextIO | None = None) -> None:
    """Send the whole process's logs to `stream` (standard error) from `level` on. May be called again.

    `debug` holds for Kvarn's own loggers. Those of libraries stay at `info`: their details quote what they were given,
    such as the parameters of statements, which are what clients wrote.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        stream: Where the lines go.

    Raises:
        ValueError: The level is unknown.
    """
    if level not in _LEVELS:
        raise ValueError(f"unknown log level {level!r}: use one of {', '.join(_LEVELS)}")
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=max(_LEVELS[level], logging.INFO), handlers=[handler], force=True)
    logging.getLogger("kvarn").setLevel(_LEVELS[level])


def configure_gateway_logging(level: str, process: int | None = None) -> None:
    """Send the logs of a gateway process to standard error.

    Args:
        level: As for `configure_logging`.
        process: Number of the process, shown in each line; None where it is the only one.
    """
    configure_logging(level)
    for told_better_here in ("uvicorn", "alembic"):
        logging.getLogger(told_better_here).setLevel(logging.WARNING)
    if process is None:
        return

    def mark(record: logging.LogRecord) -> bool:
        record.gateway_process = process
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(mark)


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace(_SEPARATOR, " ")


def _quote(text: str) -> str:
    if text and text.isprintable() and not any(character in text for character in ' "=\\'):
        return text
    escaped = (
        text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    )
    printable = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped)
    return f'"{printable}"'
