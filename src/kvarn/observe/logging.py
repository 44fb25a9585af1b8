"""Logs: one line an event to standard error, as `key=value` (readable by a person) or as a JSON object.

Personal data and secrets are taken out of every line, whatever wrote it: see `redaction`.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

from kvarn.observe.redaction import redact

_OWN_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message", "taskName"}
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_SEPARATOR = "\x1f"


class _Formatter(logging.Formatter):
    """Base of both formats: time, level, logger, message, the fields given in `extra`, and a traceback as a field of
    its own, so that an event is always one line. All texts are redacted."""

    message, traceback = "msg", "traceback"  # names of these fields

    def head_of(self, record: logging.LogRecord) -> dict[str, str]:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return {"time": moment.replace("+00:00", "Z"), "level": record.levelname.lower(), "logger": record.name}

    def fields_of(self, record: logging.LogRecord) -> Iterator[tuple[str, Any, str]]:
        fields: dict[str, Any] = {self.message: record.getMessage()}
        fields.update((key, value) for key, value in record.__dict__.items() if key not in _OWN_FIELDS)
        if record.exc_info:
            fields[self.traceback] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        # All at once: looking through one text is cheaper than through ten, and a separator (white space to the
        # patterns) keeps apart what does not belong together.
        shown = redact(_SEPARATOR.join(_text(value) for value in fields.values())).split(_SEPARATOR)
        return zip(fields, fields.values(), shown, strict=True)


class KeyValueFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        texts = [*self.head_of(record).items(), *((key, text) for key, _, text in self.fields_of(record))]
        return " ".join(f"{key}={_quote(text)}" for key, text in texts)


class JsonFormatter(_Formatter):
    message, traceback = "message", "exception"

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            key: value if _is_plain(value) and text == _text(value) else text
            for key, value, text in self.fields_of(record)
        }
        head = self.head_of(record)
        return json.dumps(head | fields | head, ensure_ascii=False)  # in this order, and no field shadows them


class _Handler(logging.StreamHandler[TextIO]):
    """Writes lines; one that cannot be rendered is reported by its place in the code, without its arguments."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        """Tell that a line is lost: the arguments that the library would print may be anybody's words."""
        error = type(sys.exception()).__name__
        lost = logging.LogRecord("kvarn.observe", logging.ERROR, "", 0, "a log line failed", None, None)
        lost.__dict__.update(where=f"{record.pathname}:{record.lineno}", error=error)
        self.stream.write(self.format(lost) + "\n")


def configure_logging(level: str, stream: TextIO | None = None, form: str = "text") -> None:
    """Send the whole process's logs to `stream` (standard error) from `level` on, as `text` or `json`. May be called
    again.

    `debug` holds for Kvarn's own loggers. Those of libraries stay at `info`: their details quote what they were given,
    such as the parameters of statements, which are what clients wrote. Raises ValueError for an unknown level.
    """
    if level not in _LEVELS:
        raise ValueError(f"unknown log level {level!r}: use one of {', '.join(_LEVELS)}")
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else KeyValueFormatter())
    logging.basicConfig(level=max(_LEVELS[level], logging.INFO), handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger("kvarn").setLevel(_LEVELS[level])


def configure_gateway_logging(level: str, form: str = "text", process: int | None = None) -> None:
    configure_logging(level, form=form)
    for logger in ("uvicorn", "alembic", "httpx", "httpx2"):  # the last two log URLs, whose queries may be secret
        logging.getLogger(logger).setLevel(logging.WARNING)
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it logs what other servers answered; errors are told anyway
    # What failed has been said, or is the command's last line.
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.msg != "Application startup failed. Exiting.")
    if process is None:
        return

    def mark(record: logging.LogRecord) -> bool:
        record.gateway_process = process
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(mark)


def logs_are_json() -> bool:
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


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
