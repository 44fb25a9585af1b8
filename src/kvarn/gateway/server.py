"""The HTTP server around the application."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import resource
import socket
from collections.abc import Generator
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from kvarn.config.load import ConfigError
from kvarn.config.schema import GatewayConfig
from kvarn.gateway.connection import MAX_REFUSED, Connection, ConnectionLimits

_BACKLOG = 4096
_ACCEPT_AGAIN_S = 0.5
_LAST_READ_S = 0.05
"""For the requests of connections that are accepted while the server stops to be read."""
_SEND_BUFFER_BYTES = 256 * 1024
"""Of each connection, in the kernel: a client that does not read holds no more. Left alone it grows to megabytes."""
_GC_THRESHOLDS = (20_000, 20, 50)
"""Objects made between two collections of the youngest, and collections of each generation before the next one is."""
_OTHER_FILES = 512
"""Files and sockets of this process that are not clients: databases, engines, logs."""

_log = logging.getLogger("kvarn.gateway")


def collect_garbage_less() -> None:
    """For a process that has imported all it needs. With thousands of requests in flight, collecting as often as Python
    does took half of its time; looking through what was imported would stop all streams for a tenth of a second."""
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.freeze()


def bind(config: GatewayConfig, *, shared: bool = False) -> socket.socket:
    """Take the configured address; port 0 takes a free one (read it from `getsockname`).

    Args:
        config: Where to listen.
        shared: Whether another process of this server has it, and has let others in by `share_port`.

    Raises:
        OSError: The address is in use or not this machine's.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Those accepted inherit these. The kernel ends connections whose client's machine or network is gone.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        write_timeout_ms = math.ceil(config.write_timeout_s * 1000)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_USER_TIMEOUT", write_timeout_ms)):
            if hasattr(socket, name):  # not every system has them all
                listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if shared:
            share_port(listener)
        listener.bind((config.host, config.port))
        listener.set_inheritable(False)
    except OSError:
        listener.close()
        raise
    return listener


def share_port(listener: socket.socket) -> None:
    """Let further processes listen on the same address; the kernel spreads new connections evenly over all.

    Called after `bind` by the first process: a second server on the same port is still refused.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


class GatewayServer(uvicorn.Server):
    """A server whose caller hears the signals: a process that serves also has engines to end.

    It accepts all the connections that wait at once. The loop (uvloop) would accept one in each of its turns: while
    turns are long, clients would wait unseen, and be cut off once the kernel's queue is full.

    Args:
        config: uvicorn's settings.
        limits: Bounds of its connections.
    """

    def __init__(self, config: uvicorn.Config, limits: ConnectionLimits) -> None:
        super().__init__(config)
        self._limits = limits
        self._accepting = set[asyncio.Task[Any]]()
        """Connections on their way, such as those whose TLS handshake is not done."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then listen."""
        await super().startup(sockets=[])
        for listener in sockets or ():
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen no more, and let the requests end that run or have been sent."""
        for listener in sockets or ():
            self._accept(listener)  # closing it would cut off those that wait
            asyncio.get_running_loop().remove_reader(listener)
        if self._accepting:
            if self.config.ssl is not None:
                for handshake in self._accepting:
                    handshake.cancel()
            await asyncio.wait(self._accepting)
            await asyncio.sleep(_LAST_READ_S)
        await super().shutdown(sockets)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_BACKLOG):
            try:
                client, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file is free: whoever waits goes on waiting
                _log.error("no connection can be accepted: %s", error)
                loop.remove_reader(listener)
                loop.call_later(_ACCEPT_AGAIN_S, self._accept_again, listener)
                return
            if self._is_full():
                client.close()
                continue
            client.setblocking(False)
            ssl = self.config.ssl
            handshake_s = None if ssl is None else self._limits.header_timeout_s
            make = partial(self._connection, client)
            connecting = loop.connect_accepted_socket(make, client, ssl=ssl, ssl_handshake_timeout=handshake_s)
            task = loop.create_task(connecting)
            self._accepting.add(task)
            task.add_done_callback(self._accepted)

    def _is_full(self) -> bool:
        """Whether there are too many connections to tell one more that there are."""
        taken = len(self._accepting) + len(self.server_state.connections) + len(self._limits.refused)
        return taken >= self._limits.max_connections + MAX_REFUSED

    def _accept_again(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0 and not self.should_exit:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accepted(self, task: asyncio.Task[Any]) -> None:
        self._accepting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.debug("a connection was not made: %s", error)  # such as a client that speaks no TLS

    def _connection(self, client: socket.socket) -> asyncio.Protocol:
        return Connection(
            self._limits,
            client,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the process's signal handlers as they are; the caller passes signals on to `handle_exit`."""
        yield


def build_server(app: FastAPI, config: GatewayConfig) -> GatewayServer:
    """A server for the application; run it with `await server.serve(sockets=[bind(config)])`.

    Told to stop (`handle_exit`), it takes no new requests, gives running ones `drain_timeout_s` to finish, then
    cancels them. The process's limit of open files is raised to what `max_connections` needs.

    Raises:
        ConfigError: The certificate or its key cannot be used.
    """
    limits = ConnectionLimits(
        max_connections=allow_connections(config.max_connections),
        idle_timeout_s=config.idle_timeout_s,
        header_timeout_s=config.header_timeout_s,
        write_timeout_s=config.write_timeout_s,
        max_header_bytes=config.max_header_bytes,
        max_headers=config.max_headers,
    )
    settings = uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        http="httptools",
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=math.ceil(config.drain_timeout_s),
        access_log=False,  # the gateway writes its own line, with model and request id
        log_config=None,  # logging belongs to the process, not to the server
        proxy_headers=False,
        server_header=False,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
    )
    try:
        settings.load()
    except OSError as error:  # an error of TLS is one
        names = " and ".join(filter(None, (config.ssl_certfile, config.ssl_keyfile)))
        raise ConfigError(f"the certificate cannot be used ({names}): {error.strerror or error}") from None
    return GatewayServer(settings, limits)


def allow_connections(wanted: int) -> int:
    """How many connections this process may hold, after raising its limit of open files as far as need be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft >= needed:
        return wanted
    allowed = max(1, soft - _OTHER_FILES)
    _log.warning(
        "the limit of open files allows fewer connections than gateway.max_connections: raise it (ulimit -n)",
        extra={"connections": allowed, "wanted": wanted, "open_files": soft},
    )
    return allowed
