"""The HTTP server around the application."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import math
import os
import resource
import socket
import ssl
from collections.abc import Generator
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.gateway import GatewayConfig
from kvarn.config.load import ConfigError

_BACKLOG = 4096
_SEND_BUFFER_BYTES = 256 * 1024
"""Send buffer of each connection in the kernel: a client that does not read holds no more (default: megabytes)."""
_GC_THRESHOLDS = (20_000, 20, 50)
"""Objects made between two collections of the youngest, and collections of each generation before the next one is."""
_FIRST_INHERITED = 3
_LAST_REQUESTS_S = 0.5
"""Seconds for the last connections to send their requests, after another server has taken over the socket."""
_FORCED_WITHIN_S = 0.1  # seconds within which a second signal ends the wait for them
_LAST_BYTES_S = 1.0  # seconds for slow readers after all requests were ended
_OTHER_FILES = 512  # files and sockets of this process that are not clients: databases, engines, logs

_log = logging.getLogger("kvarn.gateway")


def collect_garbage_less() -> None:
    """For a process that has imported all it needs; collection is on afterwards. With thousands of requests in flight,
    collecting as often as Python does took half of its time; looking through what was imported would stop all streams
    for a tenth of a second."""
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.freeze()
    gc.enable()


def bind(config: GatewayConfig, *, shared: bool = False) -> socket.socket:
    """Take the configured address; port 0 takes a free one (read it from `getsockname`). `shared`: another process of
    this server has it, and has let others in by `share_port`. Raises `OSError`: it is in use or not this machine's."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _set_options(listener, config)
        if shared:
            share_port(listener)
        listener.bind((config.host, config.port))
        listener.set_inheritable(False)
    except OSError:
        listener.close()
        raise
    return listener


def explain_bind(config: GatewayConfig, error: OSError) -> str:
    """Reason in one line for an address that cannot be bound, and what to do."""
    where = f"{config.host}:{config.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is taken by another process: stop it, or choose another port with --port (0 takes a free one)"
    if error.errno == errno.EACCES:
        return f"this user may not listen on {where}: choose a port above 1023 with --port"
    return f"cannot listen on {where}: {error.strerror or error}; check --host and --port"


def inherited_listener(config: GatewayConfig) -> socket.socket | None:
    """The socket that was passed to this process by systemd's protocol (`LISTEN_PID`, `LISTEN_FDS`); None where there
    is none. A server that takes over from another gets the other's. Raises `ConfigError`: there are several."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    count = os.environ.get("LISTEN_FDS", "")
    if count != "1":
        raise ConfigError(f"LISTEN_FDS is {count!r}: give the server one socket to listen on")
    listener = socket.socket(fileno=_FIRST_INHERITED)
    listener.set_inheritable(False)
    listener.setblocking(False)
    _set_options(listener, config)
    return listener


def _set_options(listener: socket.socket, config: GatewayConfig) -> None:
    """Options that accepted connections inherit. The kernel ends those whose client's machine or network is gone."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    write_timeout_ms = math.ceil(config.write_timeout_s * 1000)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_USER_TIMEOUT", write_timeout_ms)):
        if hasattr(socket, name):  # not every system has them all
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def share_port(listener: socket.socket) -> None:
    """Let further processes listen on the same address; the kernel spreads new connections evenly over all. Called
    after `bind` by the first process: a second server on the same port is still refused."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


class GatewayServer(uvicorn.Server):
    """uvicorn's server, but signals stay its caller's, who passes them to `handle_exit`: it has engines to end too."""

    hands_over = False
    """The socket lives on when this server stops and another one accepts, so no request may fail meanwhile."""

    def __init__(self, settings: uvicorn.Config, stopping: asyncio.Event, delay_s: float = 0.0) -> None:
        """`stopping`: set when it begins to stop; it takes requests for `delay_s` seconds more."""
        super().__init__(settings)
        self.stopping = stopping
        self._delay_s = delay_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; while a balancer learns of it, or where the socket is handed over, what comes last is still answered,
        and each answer closes its connection. uvicorn does not wait for requests that it cancelled, nor for what they
        have written."""
        self.stopping.set()
        if self.hands_over:
            for server in self.servers:
                server.close()
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        ends_at = SYSTEM_CLOCK.now() + max(self._delay_s, _LAST_REQUESTS_S if self.hands_over else 0.0)
        while (left_s := ends_at - SYSTEM_CLOCK.now()) > 0 and not self.force_exit:  # noqa: ASYNC110
            await asyncio.sleep(min(left_s, _FORCED_WITHIN_S))
        await super().shutdown(sockets)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_BYTES_S):
                while self.server_state.connections and not self.force_exit:  # noqa: ASYNC110  uvicorn has no event
                    await asyncio.sleep(0.01)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the process's signal handlers as they are."""
        yield


class Certificate:
    """The certificate of the configuration, in a context of TLS: read again when its files have changed, as those who
    renew certificates change them. Connections that are open keep theirs."""

    def __init__(self, config: GatewayConfig, context: ssl.SSLContext) -> None:
        self._config = config
        self._context = context
        self._seen = self._files()

    async def refresh(self) -> None:
        """Take a new certificate; one that cannot be used is logged once, and the old one stays."""
        files = self._files()
        if files == self._seen:
            return
        self._seen = files
        try:
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._context):  # a failed load spoils a context
                # Without a password OpenSSL would ask for that of a sealed key at the terminal, and all would wait.
                context.load_cert_chain(str(self._config.ssl_certfile), self._config.ssl_keyfile, password="")
        except OSError as error:
            _log.error("%s; the one before it is used", _unusable(self._config, error))
        else:
            _log.info("a new certificate is used from now on", extra={"file": self._config.ssl_certfile})

    def _files(self) -> list[tuple[int, int] | None]:
        return [_stamp(name) for name in (self._config.ssl_certfile, self._config.ssl_keyfile) if name is not None]


def _stamp(name: str) -> tuple[int, int] | None:
    try:
        found = Path(name).stat()
    except OSError:  # it is being replaced
        return None
    return found.st_mtime_ns, found.st_ino


def _unusable(config: GatewayConfig, error: OSError) -> str:
    names = " and ".join(filter(None, (config.ssl_certfile, config.ssl_keyfile)))
    return f"the certificate cannot be used ({names}): {error.strerror or error}"


def build_server(app: FastAPI, config: GatewayConfig) -> GatewayServer:
    """A server for the application; run it with `await server.serve(sockets=[bind(config)])`. Told to stop
    (`handle_exit`), it takes no new requests after `shutdown_delay_s`, gives running ones `drain_timeout_s` to finish,
    then cancels them. Raises `ConfigError`: the certificate or its key cannot be used."""
    allow_connections(config.max_connections)
    settings = uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        http="httptools",
        ws="none",
        lifespan="on",
        backlog=_BACKLOG,
        timeout_keep_alive=math.ceil(config.idle_timeout_s),
        timeout_graceful_shutdown=math.ceil(config.drain_timeout_s),
        access_log=False,  # the gateway writes its own line, with model and request id
        log_config=None,  # logging belongs to the process, not to the server
        proxy_headers=bool(config.forwarded_allow_ips),
        forwarded_allow_ips="*" if "*" in config.forwarded_allow_ips else list(config.forwarded_allow_ips),
        server_header=False,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
    )
    try:
        settings.load()
    except OSError as error:  # an error of TLS is one
        raise ConfigError(_unusable(config, error)) from None
    if settings.ssl is not None:
        settings.callback_notify = Certificate(config, settings.ssl).refresh
    stopping = getattr(getattr(app, "state", None), "stopping", None)  # another application may have no such streams
    return GatewayServer(settings, stopping or asyncio.Event(), config.shutdown_delay_s)


def open_files_needed(connections: int) -> int:
    return connections + _OTHER_FILES


def allow_connections(wanted: int) -> int:
    """Raise this process's limit of open files to what so many connections need; returns how many it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = open_files_needed(wanted)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = max(1, soft - _OTHER_FILES)
    _log.warning(
        "the limit of open files allows fewer connections than gateway.max_connections: raise it (ulimit -n)",
        extra={"connections": allowed, "wanted": wanted, "open_files": soft},
    )
    return allowed
