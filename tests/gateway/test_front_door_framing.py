"""What a request says besides its body is bounded, and what is sent ahead of its turn waits cheaply."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from kvarn.gateway.connection import Connection, ConnectionLimits
from raw_http import error_of, flood, head_of, read_all

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "x"}]}).encode()
CHUNKED = head_of(CHAT, "content-type: application/json", "transfer-encoding: chunked")
A_READ = 256 * 1024
"""Bytes that asyncio reads from a socket at once."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize(
    ("start", "block"),
    [
        pytest.param(b"GET /", b"y" * 65536, id="target"),
        pytest.param(b"GET ", b" " * 65536, id="spaces before the target"),
        pytest.param(b"GET /health HTTP/1.1\r\n", b"y" * 65536, id="header name"),
        pytest.param(b"GET /health HTTP/1.1\r\nx: ", b"y" * 65536, id="header value"),
        pytest.param(b"GET /health HTTP/1.1\r\nx:", b" " * 65536, id="spaces before a header value"),
        pytest.param(b"GET /health HTTP/1.1\r\n", b"x: y\r\n" * 10_000, id="headers"),
        pytest.param(b"", b"\r\n" * 32768, id="empty lines before a request"),
        pytest.param(CHUNKED, b"0" * 65536, id="chunk size"),
        pytest.param(CHUNKED + b"5;", b"y" * 65536, id="chunk extension"),
        pytest.param(CHUNKED + b"5;y=", b"y" * 65536, id="value of a chunk extension"),
        pytest.param(CHUNKED, b"1;" + b"y" * 65532 + b"\r\n \r\n", id="chunk extensions"),
        pytest.param(CHUNKED + chunk(BODY) + b"0\r\n", b"y" * 65536, id="trailer name"),
        pytest.param(CHUNKED + chunk(BODY) + b"0\r\nx: ", b"y" * 65536, id="trailer value"),
        pytest.param(CHUNKED + chunk(BODY) + b"0\r\n", b"x: y\r\n" * 10_000, id="trailers"),
    ],
)
def test_what_has_no_end_is_refused_while_it_comes(server: Any, start: bytes, block: bytes) -> None:
    raw = server.connect()
    raw.sendall(start)
    sent = flood(raw, block, 50_000_000)
    assert error_of(read_all(raw)) == (431, "headers_too_large")
    assert sent < 20_000_000, "the gateway goes on reading"


def test_trailers_too_long_are_refused_in_a_single_read_too(server: Any) -> None:
    raw = server.connect()
    raw.sendall(CHUNKED + chunk(BODY) + b"0\r\nx: " + b"y" * 100_000 + b"\r\n\r\n")
    assert error_of(read_all(raw)) == (431, "headers_too_large")


def test_a_body_in_chunks_of_a_byte_is_taken(server: Any) -> None:
    body = BODY.replace(b'"x"', b'"' + b"x" * 30_000 + b'"')
    raw = server.connect()
    head = head_of(CHAT, "content-type: application/json", "transfer-encoding: chunked", "connection: close")
    raw.sendall(head + b"".join(chunk(bytes([byte])) for byte in body) + b"0\r\n\r\n")
    # Larger than the model's context, as is only known to whoever has read it whole.
    assert error_of(read_all(raw)) == (400, "context_length_exceeded")


def test_a_trailer_is_no_header(server: Any) -> None:
    raw = server.connect()
    trailers = b"x-request-id: mine\r\nauthorization: Bearer a\r\nauthorization: Bearer b\r\n"
    raw.sendall(CHUNKED + chunk(BODY) + b"0\r\n" + trailers + b"\r\n" + head_of("/health", "connection: close"))
    answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 200 ") and b"x-request-id: mine" not in answer
    assert answer.count(b"HTTP/1.1 ") == 2, "the connection goes on"


def test_what_is_no_chunk_size_gets_400(server: Any) -> None:
    raw = server.connect()
    raw.sendall(CHUNKED + chunk(BODY) + b"zz\r\nabc\r\n")
    assert error_of(read_all(raw)) == (400, "invalid_http")


def test_a_body_after_a_request_for_an_upgrade_is_not_run_as_a_request(server: Any) -> None:
    smuggled = head_of("/health", "x-request-id: smuggled", method="GET")
    asked = ["connection: upgrade", "upgrade: h2c", "content-type: application/json"]
    for announced in (f"content-length: {len(smuggled)}", "transfer-encoding: chunked"):
        raw = server.connect()
        raw.sendall(head_of(CHAT, *asked, announced))
        answer = raw.recv(65536)
        assert error_of(answer) == (400, "upgrade_not_supported")
        raw.sendall(smuggled)
        assert read_all(raw) == b""


def test_an_upgrade_that_is_not_served_is_answered_as_if_not_asked_for(server: Any) -> None:
    raw = server.connect()
    raw.sendall(head_of("/health", "connection: upgrade", "upgrade: h2c", method="GET"))
    answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"HTTP/1.1 ") == 1


def test_a_thousand_requests_sent_at_once_are_answered_in_order(server: Any) -> None:
    raw = server.connect()
    paths = ["/health", "/nowhere"] * 500
    sent = b"".join(head_of(path, method="GET") for path in paths)
    raw.sendall(sent + CHUNKED + chunk(BODY) + b"0\r\n\r\n" + head_of("/health", "connection: close", method="GET"))
    statuses = [part.split()[0] for part in read_all(raw).split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"404"] * 500 + [b"200", b"200"]


class Pipe(asyncio.Transport):
    """The transport of a client that sends and never reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.closed = False
        self.written = b""

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def connect(app: Any) -> tuple[Connection, Pipe]:
    """A connection to an application, without a socket."""
    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, proxy_headers=False)
    config.load()
    limits = ConnectionLimits(10, 60, 60, 60, 65536, 100)
    connection = Connection(limits, config=config, server_state=ServerState(), app_state={})
    pipe = Pipe()
    connection.connection_made(pipe)
    return connection, pipe


async def slow(scope: Any, receive: Any, send: Any) -> None:
    """An application that listens for its client and does not answer yet."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def test_no_more_is_read_than_a_read_while_a_request_waits_for_its_turn() -> None:
    connection, pipe = connect(slow)
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n" * 2)
    reads = 0
    for _ in range(10):
        await asyncio.sleep(0)  # the application that listens has reading go on
        if pipe.reading:
            connection.data_received(b"x" * A_READ)
            reads += 1
    assert reads <= 2 and not pipe.reading
    connection.connection_lost(None)


async def test_a_refused_upgrade_is_no_answer_to_the_request_before_it() -> None:
    connection, pipe = connect(slow)
    connection.data_received(b"GET /first HTTP/1.1\r\n\r\n")
    await asyncio.sleep(0)
    connection.data_received(
        b"POST /second HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 3\r\n\r\nabc"
    )
    assert pipe.closed and b"upgrade_not_supported" not in pipe.written
    connection.connection_lost(None)


async def test_requests_ahead_of_their_turn_wait_unparsed() -> None:
    one = b"GET / HTTP/1.1\r\n\r\n"
    many = A_READ // len(one)
    answer, all_answered = asyncio.Event(), asyncio.Event()
    asked = answered = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked, answered
        asked += 1
        listening = asyncio.ensure_future(receive_all(receive))
        await answer.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})
        await listening
        answered += 1
        if answered == many:
            all_answered.set()

    async def receive_all(receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    connection, pipe = connect(app)
    connection.data_received(one * many)
    await asyncio.sleep(0.05)
    assert len(connection.pipeline) < 300 and asked == 1
    assert not pipe.reading, "an application that listens for its client lets in no more"
    answer.set()
    await asyncio.wait_for(all_answered.wait(), 30)
    assert pipe.reading and not connection.pipeline
    connection.connection_lost(None)
