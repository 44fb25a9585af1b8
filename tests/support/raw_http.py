"""HTTP by hand, for what no proper client would send."""

from __future__ import annotations

import json
import select
import socket
from typing import Any


def head_of(path: str, *headers: str, method: str = "POST") -> bytes:
    """A request's head."""
    lines = [f"{method} {path} HTTP/1.1", "host: x", *headers, "", ""]
    return "\r\n".join(lines).encode()


def post_of(path: str, body: Any, *headers: str) -> bytes:
    """A whole request with a JSON body."""
    content = json.dumps(body).encode()
    return head_of(path, "content-type: application/json", f"content-length: {len(content)}", *headers) + content


def read_all(raw: socket.socket) -> bytes:
    """What comes until the connection is closed, or reset."""
    parts = []
    try:
        while part := raw.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    raw.close()
    return b"".join(parts)


def read_answer(raw: socket.socket) -> bytes:
    """One answer that has a content-length, on a connection that may stay open."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += raw.recv(65536)
    head, _, body = answer.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += raw.recv(65536)
    return head + b"\r\n\r\n" + body


def error_of(answer: bytes) -> tuple[int, str]:
    """Status and code of an answer that is an error."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def flood(raw: socket.socket, block: bytes, most: int) -> int:
    """Send a block again and again until the other side answers, hangs up or has taken `most` bytes; how many."""
    raw.setblocking(False)
    sent = 0
    try:
        while sent < most:
            readable, writable, _ = select.select([raw], [raw], [], 10)
            if readable or not writable:
                break
            sent += raw.send(block[sent % len(block) :])
    except ConnectionError:
        pass
    raw.settimeout(10)
    return sent
