"""Many clients at once, over plain HTTP and TLS, and the server's end."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx
import pytest
import uvloop

from certificates import write_certificate
from kvarn.config.gateway import GatewayConfig
from kvarn.gateway.server import bind, build_server

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
LOOPS = [uvloop.run, asyncio.run]


class App:
    """Answers after a time."""

    def __init__(self, answer_s: float = 0.0) -> None:
        self.answer_s = answer_s
        self.began = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": message["type"] + ".complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        self.began.set()
        await asyncio.sleep(self.answer_s)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def serve_beside(app: App, work: Any, **settings: Any) -> None:
    config = GatewayConfig(port=0, **({"drain_timeout_s": 1} | settings))
    listener = bind(config)
    address = listener.getsockname()
    running = build_server(app, config)
    serving = asyncio.create_task(running.serve(sockets=[listener]))
    while not running.started:  # noqa: ASYNC110  uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        await work(address, running)
    finally:
        running.should_exit = True
        await serving


async def status_of(client: socket.socket) -> bytes:
    client.setblocking(False)
    with client:
        return (await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 100), 20))[:12]


@pytest.mark.parametrize("loop", LOOPS)
def test_hundreds_who_connect_while_the_loop_is_busy_are_all_answered(loop):
    async def work(address: Any, _: Any) -> None:
        clients = [socket.create_connection(address) for _ in range(200)]  # the loop is held up meanwhile
        for client in clients:
            client.sendall(REQUEST)
        assert await asyncio.gather(*map(status_of, clients)) == [b"HTTP/1.1 204"] * 200

    loop(serve_beside(App(), work))


@pytest.mark.parametrize("loop", LOOPS)
def test_an_answer_that_runs_is_finished_before_the_server_ends(loop):
    async def work(address: Any, running: Any) -> None:
        client = socket.create_connection(address)
        client.sendall(REQUEST)
        await app.began.wait()
        running.should_exit = True
        assert await status_of(client) == b"HTTP/1.1 204"

    app = App(answer_s=0.5)
    loop(serve_beside(app, work, drain_timeout_s=20))


@pytest.mark.parametrize("loop", LOOPS)
def test_a_server_that_is_stopped_behind_a_balancer_still_answers_and_closes_what_it_answered(loop):
    async def work(address: Any, running: Any) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{address[1]}") as client:
            assert "connection" not in (await client.get("/")).headers
            running.should_exit = True
            await asyncio.wait_for(running.stopping.wait(), 20)
            assert (await client.get("/")).headers["connection"] == "close"
        client = socket.create_connection(address)
        client.sendall(REQUEST)
        assert await status_of(client) == b"HTTP/1.1 204"
        running.force_exit = True  # a second signal

    loop(serve_beside(App(), work, shutdown_delay_s=60))


@pytest.mark.parametrize("loop", LOOPS)
def test_https_is_served_with_a_certificate(loop, tmp_path):
    file, key = write_certificate(tmp_path)

    async def work(address: Any, _: Any) -> None:
        async with httpx.AsyncClient(verify=False) as client:  # the certificate is self-signed
            assert (await client.get(f"https://127.0.0.1:{address[1]}/")).status_code == 204

    loop(serve_beside(App(), work, ssl_certfile=str(file), ssl_keyfile=str(key)))
