"""Clients that wait while the event loop is busy: they are accepted together, and their time counts."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest
import uvloop

from certificates import write_certificate
from kvarn.config.schema import GatewayConfig
from kvarn.gateway import server
from kvarn.gateway.record import _TCP_INFO, received_at
from kvarn.gateway.server import bind, build_server

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class App:
    """Notes for how long each request has been on this machine."""

    def __init__(self, answer_s: float = 0.0) -> None:
        self.answer_s = answer_s
        self.waited_s: list[float] = []
        self.asked = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": message["type"] + ".complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        self.waited_s.append(time.monotonic() - received_at(scope))
        self.asked.set()
        await asyncio.sleep(self.answer_s)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def serve_beside(app: App, work: Any, **settings: Any) -> None:
    config = GatewayConfig(port=0, **({"drain_timeout_s": 1} | settings))
    listener = bind(config)
    address = listener.getsockname()
    running = build_server(app, config)  # type: ignore[arg-type]
    serving = asyncio.create_task(running.serve(sockets=[listener]))
    while not running.started:  # noqa: ASYNC110  uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        await work(address, running)
    finally:
        running.should_exit = True
        await serving


def send_one(address: Any) -> socket.socket:
    client = socket.create_connection(address)
    client.sendall(REQUEST)
    return client


@pytest.mark.parametrize("loop", [uvloop.run, asyncio.run])
def test_all_who_wait_to_be_accepted_are_accepted_at_once(loop: Any) -> None:
    async def work(address: Any, running: Any) -> None:
        clients = [send_one(address) for _ in range(100)]  # the loop is held up meanwhile
        for _ in range(10):  # turns of the loop
            await asyncio.sleep(0)
        assert len(running.server_state.connections) == 100
        for client in clients:
            client.close()

    loop(serve_beside(App(), work))


@pytest.mark.skipif(_TCP_INFO is None, reason="the system does not say when data came")
@pytest.mark.parametrize("loop", [uvloop.run, asyncio.run])
def test_latency_counts_from_when_the_kernel_had_the_bytes(loop: Any) -> None:
    app = App()

    async def work(address: Any, _: Any) -> None:
        client = send_one(address)
        time.sleep(0.4)  # noqa: ASYNC251  the loop is busy
        await app.asked.wait()
        client.close()

    loop(serve_beside(app, work))
    assert app.waited_s[0] > 0.3


@pytest.mark.parametrize("loop", [uvloop.run, asyncio.run])
def test_the_answers_before_a_request_sent_ahead_are_no_wait_in_the_process(loop: Any) -> None:
    app = App(answer_s=1.0)

    async def work(address: Any, _: Any) -> None:
        client = socket.create_connection(address)
        client.sendall(REQUEST * 2)
        await app.asked.wait()
        client.sendall(REQUEST)  # not read before the first is answered
        while len(app.waited_s) < 3:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.05)
        client.close()

    loop(serve_beside(app, work))
    assert max(app.waited_s) < 0.8


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    file, key = write_certificate(tmp_path_factory.mktemp("tls"))
    return {"ssl_certfile": str(file), "ssl_keyfile": str(key)}


async def closed(client: socket.socket, within_s: float) -> bool:
    """Whether the server closes a connection that says nothing."""
    client.setblocking(False)
    try:
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1), within_s) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


@pytest.mark.parametrize("loop", [uvloop.run, asyncio.run])
def test_a_tls_handshake_ends_with_the_time_for_headers(loop: Any, tls: dict[str, str]) -> None:
    async def work(address: Any, _: Any) -> None:
        with socket.create_connection(address) as client:
            assert await closed(client, 20)

    loop(serve_beside(App(), work, header_timeout_s=1, **tls))


@pytest.mark.parametrize("loop", [uvloop.run, asyncio.run])
def test_tls_handshakes_count_as_connections(loop: Any, tls: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_REFUSED", 3)

    async def work(address: Any, running: Any) -> None:
        clients = [socket.create_connection(address) for _ in range(12)]
        assert all([await closed(client, 20) for client in clients[5:]])
        assert len(running._accepting) == 5
        for client in clients:
            client.close()

    loop(serve_beside(App(), work, max_connections=2, header_timeout_s=600, **tls))


@pytest.mark.parametrize("loop", [uvloop.run, asyncio.run])
def test_a_server_that_stops_ends_handshakes(loop: Any, tls: dict[str, str]) -> None:
    clients = []

    async def work(address: Any, running: Any) -> None:
        clients.append(socket.create_connection(address))
        while not running._accepting:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)

    async def serve() -> None:
        await serve_beside(App(), work, header_timeout_s=600, **tls)
        assert await closed(clients[0], 20)
        assert len(asyncio.all_tasks()) == 1

    loop(serve())
    clients[0].close()


@pytest.mark.parametrize("loop", [uvloop.run, asyncio.run])
def test_who_waits_to_be_accepted_when_the_server_stops_is_answered(loop: Any) -> None:
    async def start_and_stop() -> list[socket.socket]:
        config = GatewayConfig(port=0, drain_timeout_s=10)
        listener = bind(config)
        running = build_server(App(), config)  # type: ignore[arg-type]
        running.lifespan = running.config.lifespan_class(running.config)
        await running.startup(sockets=[listener])
        clients = [send_one(listener.getsockname()) for _ in range(20)]  # the loop does not look before it stops
        await running.shutdown([listener])
        return clients

    for client in loop(start_and_stop()):
        client.settimeout(10)
        assert client.recv(100).startswith(b"HTTP/1.1 204")
        client.close()
