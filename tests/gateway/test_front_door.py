"""Clients that are slow, silent or half closed, and requests that are not HTTP: raw sockets against the gateway."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from asking import CHAT, chat
from raw_http import error_of, head_of, post_of, read_all, read_answer

WaitFor = Callable[..., None]


def test_a_connection_is_closed_some_time_after_its_answer(serve):
    with serve(idle_timeout_s=0.4) as server:
        raw = server.connect()
        raw.sendall(post_of(CHAT, chat()))
        assert read_all(raw).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_does_not_read_is_cut_off_and_its_request_aborted(serve, wait_for):
    def prepare(server: Any) -> None:
        server.widen(200_000)
        server.chat.answer = lambda request, index: [120] * 150_000
        server.chat.tokens_per_step = 50

    with serve(prepare, write_timeout_s=0.5) as server:
        raw = server.connect(receive_buffer=4096)
        raw.sendall(post_of(CHAT, chat(stream=True, logprobs=True, ignore_eos=True)))
        wait_for(lambda: server.chat.running, "the request to run")
        wait_for(lambda: server.chat.aborted and not server.chat.running, "the request to be aborted")
        raw.close()


def test_a_half_closed_connection_counts_as_left(server, wait_for):
    server.chat.hold = asyncio.Event()  # never set
    for stream in (False, True):
        raw = server.connect()
        raw.sendall(post_of(CHAT, chat(stream=stream)))
        wait_for(lambda: server.chat.running, "the request to reach the engine")
        raw.shutdown(socket.SHUT_WR)
        wait_for(lambda: not server.chat.running, "the request to be aborted")
        assert read_all(raw) == b""
    assert len(server.chat.aborted) == 2


def test_a_half_sent_request_that_is_half_closed_is_forgotten(server, client):
    for sent in (
        b"POST /v1",
        post_of(CHAT, chat())[:-5],
        head_of(CHAT, "content-type: application/json", "transfer-encoding: chunked") + b"ff\r\nabc",
    ):
        raw = server.connect()
        raw.sendall(sent)
        raw.shutdown(socket.SHUT_WR)
        assert read_all(raw) == b""
    assert client.post(CHAT, json=chat()).status_code == 200


@pytest.mark.parametrize(
    "flood",
    [
        b"GET /health HTTP/1.1\r\nconnection: close\r\n"
        + b"".join(b"x-%d: y\r\n" % number for number in range(200))
        + b"\r\n",
        b"GET /health HTTP/1.1\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 65_000 + b" HTTP/1.1\r\nx: " + b"y" * 1000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"x: " * 40_000 + b"\r\n\r\n",
    ],
)
def test_too_many_headers_and_too_long_ones_get_431(server, flood):
    raw = server.connect()
    raw.sendall(flood)
    assert error_of(read_answer(raw)) == (431, "headers_too_large")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\nhost x\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 3\r\ncontent-length: 5\r\n\r\nabc",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\nabc",
        head_of(CHAT, "transfer-encoding: chunked") + b"zz\r\nabc\r\n",
    ],
)
def test_what_is_not_http_gets_400_and_the_connection_is_closed(server, garbage):
    raw = server.connect()
    raw.sendall(garbage)
    assert read_all(raw).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("name", ["authorization", "content-type", "host", "x-api-key"])
def test_a_header_that_may_stand_once_may_not_stand_twice(server, name):
    body = json.dumps(chat()).encode()
    twice = [f"{name}: application/json", f"{name}: application/json"]
    own = [] if name == "content-type" else ["content-type: application/json"]
    raw = server.connect()
    raw.sendall(head_of(CHAT, *twice, *own, f"content-length: {len(body)}", "connection: close") + body)
    assert error_of(read_all(raw)) == (400, "duplicate_header")


@pytest.mark.parametrize("value", [b"Bearer \xff\xfe", b"\xc3\x28", b"Bearer \xf0\x9f\x98\x80"])
def test_headers_that_are_not_text_are_no_server_error(server, value):
    body = json.dumps(chat()).encode()
    raw = server.connect()
    lines = [b"POST /v1/chat/completions HTTP/1.1", b"host: x", b"content-type: application/json"]
    lines += [b"authorization: " + value, b"x-request-id: " + value, b"connection: close"]
    raw.sendall(b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", b""]) + body)
    assert int(read_all(raw).split()[1]) in (200, 400, 401)


BODY = json.dumps(chat()).encode()
CHUNKED = head_of(CHAT, "content-type: application/json", "transfer-encoding: chunked")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_a_body_in_chunks_of_a_byte_is_taken(server):
    body = BODY.replace(b'"x"', b'"' + b"x" * 30_000 + b'"')
    raw = server.connect()
    head = head_of(CHAT, "content-type: application/json", "transfer-encoding: chunked", "connection: close")
    raw.sendall(head + b"".join(chunk(bytes([byte])) for byte in body) + b"0\r\n\r\n")
    # Larger than the model's context, as is only known to whoever has read it whole.
    assert error_of(read_all(raw)) == (400, "context_length_exceeded")


def test_a_body_after_a_request_for_an_upgrade_is_not_run_as_a_request(server):
    smuggled = head_of("/health", "x-request-id: smuggled", method="GET")
    asked = ["connection: upgrade", "upgrade: h2c", "content-type: application/json"]
    for announced in (f"content-length: {len(smuggled)}", "transfer-encoding: chunked"):
        raw = server.connect()
        raw.sendall(head_of(CHAT, *asked, announced))
        answer = read_all(raw)
        assert error_of(answer) == (400, "upgrade_not_supported")


def test_an_upgrade_that_is_not_served_is_answered_as_if_not_asked_for(server):
    raw = server.connect()
    raw.sendall(head_of("/health", "connection: upgrade, close", "upgrade: h2c", method="GET"))
    answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"HTTP/1.1 ") == 1


def test_a_thousand_requests_sent_at_once_are_answered_in_order(server):
    raw = server.connect()
    paths = ["/health", "/nowhere"] * 500
    sent = b"".join(head_of(path, method="GET") for path in paths)
    raw.sendall(sent + CHUNKED + chunk(BODY) + b"0\r\n\r\n" + head_of("/health", "connection: close", method="GET"))
    statuses = [part.split()[0] for part in read_all(raw).split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"404"] * 500 + [b"200", b"200"]
