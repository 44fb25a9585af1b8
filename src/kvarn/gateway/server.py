"""The HTTP server around the application."""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Generator

import uvicorn
from fastapi import FastAPI

from kvarn.config.schema import GatewayConfig

_BACKLOG = 2048
_SEND_BUFFER_BYTES = 256 * 1024
"""Of each connection, in the kernel: a client that does not read holds no more. Left alone it grows to megabytes."""
_KEEP_ALIVE_S = 75
"""Longer than the usual 60 s of load balancers, so that it is they who close idle connections."""


def bind(config: GatewayConfig) -> socket.socket:
    """Take the configured address; port 0 takes a free one (read it from `getsockname`).

    Raises:
        OSError: The address is in use or not this machine's.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        listener.bind((config.host, config.port))
        listener.set_inheritable(False)
    except OSError:
        listener.close()
        raise
    return listener


class GatewayServer(uvicorn.Server):
    """A server whose caller hears the signals: a process that serves also has engines to end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the process's signal handlers as they are; the caller passes signals on to `handle_exit`."""
        yield


def build_server(app: FastAPI, config: GatewayConfig) -> GatewayServer:
    """A server for the application; run it with `await server.serve(sockets=[bind(config)])`.

    Told to stop (`handle_exit`), it takes no new requests, gives running ones `drain_timeout_s` to finish, then
    cancels them.
    """
    settings = uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        http="httptools",
        ws="none",
        lifespan="on",
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(config.drain_timeout_s),
        access_log=False,  # the gateway writes its own line, with model and request id
        log_config=None,  # logging belongs to the process, not to the server
        proxy_headers=False,
        server_header=False,
    )
    return GatewayServer(settings)
