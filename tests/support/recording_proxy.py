"""Proxies of the tests: one before a server that keeps each request, one that lets nothing through to elsewhere."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

LONGEST_TEXT = 200
SECRET = ("authorization", "x-api-key", "cookie")
HOPS = ("connection", "content-length", "host", "transfer-encoding", "accept-encoding", "content-encoding")


@dataclass
class Recorder:
    """A proxy before a server; `requests` has one mapping for each request that it has answered."""

    target: str
    folder: Path
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(self, request: Request) -> StreamingResponse:
        body = await request.body()
        headers = [(name, value) for name, value in request.headers.items() if name not in HOPS]
        client: httpx.AsyncClient = request.app.state.client
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        answer = await client.send(
            client.build_request(request.method, path, headers=headers, content=body), stream=True
        )
        recorded = {
            "method": request.method,
            "path": path,
            "headers": {name: "***" if name in SECRET else value for name, value in headers},
            "body": shortened(json.loads(body)) if body else None,
            "status": answer.status_code,
            "answer_headers": dict(answer.headers),
        }
        kept = {name: value for name, value in answer.headers.items() if name not in HOPS}
        return StreamingResponse(self._pass_on(answer, recorded), answer.status_code, kept)

    async def _pass_on(self, answer: httpx.Response, recorded: dict[str, Any]) -> AsyncIterator[bytes]:
        text = b""
        try:
            async for piece in answer.aiter_bytes():
                text += piece
                yield piece
        finally:
            await answer.aclose()
            recorded["answer"] = text.decode(errors="replace")
            self.requests.append(recorded)
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{len(self.requests):03}.json"
            path.write_text(json.dumps(recorded, indent=1, ensure_ascii=False))


def shortened(value: Any) -> Any:
    """The same JSON with the ends of long texts cut off: shapes are kept, prompts are not."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else f"{value[:LONGEST_TEXT]}... ({len(value)} characters)"
    if isinstance(value, list):
        return [shortened(item) for item in value]
    if isinstance(value, dict):
        return {name: shortened(item) for name, item in value.items()}
    return value


@contextmanager
def recording(target: str, folder: Path) -> Iterator[Recorder]:
    """Record what is sent to `recorder.url` and answered by a server, into a folder."""
    recorder = Recorder(target, folder)
    app = Starlette(routes=[Route("/{path:path}", recorder.__call__, methods=["GET", "HEAD", "POST", "DELETE"])])
    app.state.client = httpx.AsyncClient(base_url=target, timeout=300)
    listener = socket.create_server(("127.0.0.1", 0))
    recorder.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), name="recorder")
    thread.start()
    try:
        yield recorder
    finally:
        server.should_exit = True
        thread.join(60)


@contextmanager
def refusing_proxy() -> Iterator[tuple[str, list[str]]]:
    """An HTTP proxy that lets nothing through: its URL, and the hosts that were asked for."""
    hosts: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(10)
                words = connection.recv(4096).split()
                hosts.append(words[1].decode(errors="replace") if len(words) > 1 else "")
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    thread = threading.Thread(target=refuse, name="refusing proxy", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", hosts
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
