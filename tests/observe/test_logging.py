from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from kvarn.observe.logging import configure_logging


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    # Servers that other tests share ask theirs for their health all the time.
    monkeypatch.setattr(logging.getLogger("httpx"), "propagate", False)
    configure_logging("info", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("kvarn").setLevel(logging.NOTSET)


def test_an_event_is_one_line_of_keys_and_values(stream):
    logging.getLogger("kvarn.x").info("engine is %s", "ready", extra={"model": "demo", "seconds": 1.23456789, "n": 3})
    line = stream.getvalue()
    assert line.startswith("time=20") and line.count("\n") == 1
    assert 'level=info logger=kvarn.x msg="engine is ready" model=demo seconds=1.23457 n=3' in line


def test_values_cannot_break_out_of_their_line(stream):
    logging.getLogger("kvarn.x").warning("a\nlevel=error", extra={"path": 'C:\\"x"\x1b[31m', "empty": ""})
    line = stream.getvalue()
    assert line.count("\n") == 1 and "\x1b" not in line
    assert 'msg="a\\nlevel=error"' in line and 'empty=""' in line


def test_a_traceback_stays_in_its_event(stream):
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("kvarn.x").exception("failed")
    assert stream.getvalue().count("\n") == 1 and "ValueError: broken" in stream.getvalue()


def test_the_level_is_kept_and_must_be_known(stream):
    logging.getLogger("kvarn.x").debug("unseen")
    assert stream.getvalue() == ""
    with pytest.raises(ValueError, match="loud"):
        configure_logging("loud")


def test_libraries_stay_quiet_at_debug_level(stream):
    configure_logging("debug", stream)
    logging.getLogger("aiosqlite").debug("INSERT with somebody's words")
    logging.getLogger("kvarn.x").debug("a detail of ours")
    logging.getLogger("aiosqlite").info("an event")
    assert "somebody" not in stream.getvalue()
    assert "a detail of ours" in stream.getvalue() and "an event" in stream.getvalue()
