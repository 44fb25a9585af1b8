"""Nothing of a person, and no secret, gets into a log line, whatever wrote it."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterator

import pytest

from kvarn.observe.logging import configure_logging
from kvarn.observe.redaction import redact

OWN = ("kvarn.x", "kvarn.alone", "somebody.elses.library")
"""Loggers of these tests: a server that an earlier test left to itself may still say something."""


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging("info", stream)
    for handler in root.handlers:
        if getattr(handler, "stream", None) is stream:
            handler.addFilter(lambda record: record.name in OWN)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("kvarn").setLevel(logging.NOTSET)


SECRETS = [
    ("åsa.berg+x@exempel.co.se", "[email]"),
    ("+46 70-123 45 67", "[phone]"),
    ("0046701234567", "[phone]"),
    ("070-123 45 67", "[phone]"),
    ("(555) 123-4567", "[phone]"),
    ("4111 1111 1111 1111", "[card]"),
    ("5500-0000-0000-0004", "[card]"),
    ("378282246310005", "[card]"),
    ("SE45 5000 0000 0583 9825 7466", "[iban]"),
    ("GB29NWBK60161331926819", "[iban]"),
    ("192.168.17.4", "[ip]"),
    ("2001:db8::8a2e:370:7334", "[ip]"),
    ("sk-proj-abcDEF0123456789", "[key]"),
    ("kv-3f9a0b1c2d3e4f5a6b7c8d9e", "[key]"),
    ("AKIAIOSFODNN7EXAMPLE", "[key]"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sflKxwRJSMeKKF2QT4", "[key]"),
]


@pytest.mark.parametrize(("secret", "kind"), SECRETS)
@pytest.mark.parametrize("text", ["{}", "said {} to us", "x={},", "({})", "'{}'", "a line\n{}\nmore"])
def test_each_kind_is_replaced_wherever_it_stands(secret: str, kind: str, text: str) -> None:
    assert redact(text.format(secret)) == text.format(kind)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer [token]"),
        ("{'authorization': 'Basic dXNlcjpwYXNz='}", "{'authorization': 'Basic [token]'}"),
        ("postgresql://kvarn:hunter2@db:5432/kvarn", "postgresql://kvarn:[secret]@db:5432/kvarn"),
        ("password=hunter2, next", "password=[secret], next"),
        ('{"api_key": "0123456789"}', '{"api_key": "[secret]"}'),
    ],
)
def test_what_is_said_to_be_secret_is_taken_out(text: str, kept: str) -> None:
    assert redact(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21 10:33:12.123 took 12.345 s of 100.000",
        "req-0123456789abcdef0123456789abcdef",
        "chatcmpl-9f0c1122334455667788990011223344",
        "123e4567-e89b-12d3-a456-426614174000",
        "listening on http://127.0.0.1:8000 and [::1]:8000 and 0.0.0.0",
        "tokens 1 2 3 4 5 6 7 8 9 10 11 12 13, ratio 0.1234567890123",
        "4111 1111 1111 1112",
        "version 0.61.0, 4000000 waiting tokens, 1733000000",
        "unexpected basic authentication scheme",
        "/v1/chat/completions",
        "lower kv_cache_gib or kv-cache-dtype",
    ],
)
def test_what_names_nobody_stays(text: str) -> None:
    assert redact(text) == text


def test_messages_arguments_fields_and_tracebacks_are_redacted(stream: io.StringIO) -> None:
    log = logging.getLogger("kvarn.x")
    log.info("mail from %s", "a@b.se", extra={"client": "10.1.2.3", "who": {"phone": "+4670 1234567"}, "n": 12345})
    log.info("a number", extra={"card": 4111111111111111})
    try:
        raise ValueError("no key sk-abcdefgh12345678") from KeyError("c@d.se")
    except ValueError:
        log.exception("failed for %s", "e@f.se")
    logging.getLogger("somebody.elses.library").error("Authorization: Bearer abcdef123456", stack_info=True)
    text = stream.getvalue()
    for secret in ("a@b.se", "10.1.2.3", "1234567", "4111111111111111", "sk-abcdefgh", "c@d.se", "e@f.se", "abcdef123"):
        assert secret not in text
    assert text.count("\n") == 4 and "n=12345" in text and "ValueError: no key [key]" in text
    assert "stack=" in text


def test_fields_keep_their_places_whatever_is_in_them(stream: io.StringIO) -> None:
    extra = {"a": "x\x1fy password=", "b": "POST", "c": "Bearer", "d": 4111, "e": 1111, "f": 0.5}
    logging.getLogger("kvarn.x").info("4111 1111", extra=extra)
    assert 'msg="4111 1111" a="x y password=" b=' in stream.getvalue()
    assert stream.getvalue().endswith(" e=1111 f=0.5\n")


def test_a_line_that_cannot_be_rendered_does_not_print_its_arguments(
    stream: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    (own,) = [handler for handler in logging.getLogger().handlers if getattr(handler, "stream", None) is stream]
    log = logging.getLogger("kvarn.alone")  # pytest's own handlers raise where a line fails
    log.propagate, log.handlers = False, [own]
    log.warning("two %s %s", *["a secret prompt"])
    assert "a secret prompt" not in stream.getvalue() + capsys.readouterr().err
    assert "a log line failed" in stream.getvalue() and "test_redaction.py" in stream.getvalue()


@pytest.mark.parametrize(
    "piece", ["1 ", "1-", "a@", "0:", "1.", "bearer ", "basic a", "AA11", "eyJaaaaaaaaa.", "a.b-", "+1", "sk-", "://a:"]
)
def test_a_hostile_text_costs_no_more_than_its_length(piece: str) -> None:
    def seconds(size: int) -> float:
        text = piece * (size // len(piece)) + "@"
        began = time.process_time()
        redact(text)
        return time.process_time() - began

    # Sixteen times the text takes sixteen times as long, with a quadratic pattern 256 times. What else the machine does
    # only adds to a measurement: the smallest of three counts, and 64 times is far from both.
    small, large = (min(seconds(size) for _ in range(3)) for size in (12_500, 200_000))
    assert large < 64 * max(small, 0.001)
