"""What a request says besides its body is bounded, and what is sent ahead of its turn waits cheaply."""

from __future__ import annotations

import json
from typing import Any

from raw_http import error_of, head_of, read_all

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "x"}]}).encode()
CHUNKED = head_of(CHAT, "content-type: application/json", "transfer-encoding: chunked")
A_READ = 256 * 1024
"""Bytes that asyncio reads from a socket at once."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_a_body_in_chunks_of_a_byte_is_taken(server: Any) -> None:
    body = BODY.replace(b'"x"', b'"' + b"x" * 30_000 + b'"')
    raw = server.connect()
    head = head_of(CHAT, "content-type: application/json", "transfer-encoding: chunked", "connection: close")
    raw.sendall(head + b"".join(chunk(bytes([byte])) for byte in body) + b"0\r\n\r\n")
    # Larger than the model's context, as is only known to whoever has read it whole.
    assert error_of(read_all(raw)) == (400, "context_length_exceeded")


def test_a_body_after_a_request_for_an_upgrade_is_not_run_as_a_request(server: Any) -> None:
    smuggled = head_of("/health", "x-request-id: smuggled", method="GET")
    asked = ["connection: upgrade", "upgrade: h2c", "content-type: application/json"]
    for announced in (f"content-length: {len(smuggled)}", "transfer-encoding: chunked"):
        raw = server.connect()
        raw.sendall(head_of(CHAT, *asked, announced))
        answer = read_all(raw)
        assert error_of(answer) == (400, "upgrade_not_supported")


def test_an_upgrade_that_is_not_served_is_answered_as_if_not_asked_for(server: Any) -> None:
    raw = server.connect()
    raw.sendall(head_of("/health", "connection: upgrade, close", "upgrade: h2c", method="GET"))
    answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"HTTP/1.1 ") == 1


def test_a_thousand_requests_sent_at_once_are_answered_in_order(server: Any) -> None:
    raw = server.connect()
    paths = ["/health", "/nowhere"] * 500
    sent = b"".join(head_of(path, method="GET") for path in paths)
    raw.sendall(sent + CHUNKED + chunk(BODY) + b"0\r\n\r\n" + head_of("/health", "connection: close", method="GET"))
    statuses = [part.split()[0] for part in read_all(raw).split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"404"] * 500 + [b"200", b"200"]
