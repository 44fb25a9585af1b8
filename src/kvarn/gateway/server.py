"""The HTTP server around the application."""

from __future__ import annotations

import math
import socket

import uvicorn
from fastapi import FastAPI

from kvarn.config.schema import GatewayConfig

_BACKLOG = 2048
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
        listener.bind((config.host, config.port))
        listener.set_inheritable(False)
    except OSError:
        listener.close()
        raise
    return listener


def build_server(app: FastAPI, config: GatewayConfig) -> uvicorn.Server:
    """A server for the application; run it with `await server.serve(sockets=[bind(config)])`.

    On SIGINT or SIGTERM it stops taking requests, gives running ones `drain_timeout_s` to finish, then cancels them.
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
    return uvicorn.Server(settings)
