"""The message queues that join an engine process to its supervisor and its clients.

Each direction is a PUSH socket at the sender and a PULL socket at the receiver. The receiver binds and the sender
connects: a connected PUSH socket always has a queue to write to, so a sender never waits for its peer. High-water marks
are off. Nothing may be dropped, and the engine may not block on a slow gateway, so the queue has to take what comes; it
stays bounded because each message belongs to an accepted request with a token limit, and the engine bounds those.

Over TCP a connection may break, and what was under way on it is lost: clients notice, fail their requests and join the
engine again. A machine that is merely slow, or cut off for a few seconds, loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec
import zmq
import zmq.auth.thread

from kvarn.replica.connection_monitor import ConnectionMonitor
from kvarn.replica.endpoint import CurveKeys, Endpoint
from kvarn.wire.messages import FromEngine, ToEngine

SUPERVISOR_LINGER_MS = 60_000
"""An engine that fails at once says why before its supervisor, which may still be starting, reads it. It never outlives
the supervisor: see `kvarn.replica.server.parent`."""
CLIENT_LINGER_MS = 2000  # clients read at once, or have ended
TCP_LINGER_MS = 5000  # to another machine, which may be gone
_TCP_CONNECT_MS = 2000
"""Then it is tried again: a machine that was cut off is back sooner than TCP itself tries."""
_TCP_PING_MS, _TCP_SILENT_MS = 2000, 10_000
"""The other end is asked whether it is there; one that says nothing for so long is not."""
_LAST_ANSWERS_S = 1.0
"""An engine that ends reads no more before its last answers have come: for so long they are still awaited."""
_MESSAGES_AT_ONCE = 16
"""Messages handled in one turn of the event loop: when it was held up, hundreds of steps may have come."""

Context = zmq.Context[zmq.Socket[bytes]]
OutboxKeys = tuple[str, str, str]

_DOMAIN = "kvarn"
"""ZAP domain: sockets that have one are guarded."""

log = logging.getLogger(__name__)


def engine_outbox_keys(keys: CurveKeys | None) -> OutboxKeys | None:
    return None if keys is None else (keys.engine, keys.engine_secret, keys.gateway)


class Outbox:
    """Sends messages to one address. For one thread; several may feed the same receiver.

    Args:
        linger_ms: Time for which what is queued when it is closed is still sent.
        keys: Own public and secret key and the receiver's public one; None: no TCP.
        monitored: Have a `monitor` of the connection.
    """

    def __init__(
        self,
        context: Context,
        address: str,
        linger_ms: int,
        keys: OutboxKeys | None = None,
        *,
        monitored: bool = False,
    ) -> None:
        self._socket = context.socket(zmq.PUSH)
        self.monitor = ConnectionMonitor(self._socket) if monitored else None
        if keys is not None:
            _notice_silence(self._socket)
            self._socket.setsockopt(zmq.CONNECT_TIMEOUT, _TCP_CONNECT_MS)
            self._socket.curve_publickey, self._socket.curve_secretkey, self._socket.curve_serverkey = (
                key.encode() for key in keys
            )
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, linger_ms if keys is None else min(linger_ms, TCP_LINGER_MS))
        self._socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: ToEngine | FromEngine) -> None:
        self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)

    def close(self, *, drop: bool = False) -> None:
        """Close; what is queued lingers, unless dropped."""
        self._socket.close(linger=0 if drop else None)


class UnreadableRequest(msgspec.Struct, frozen=True):
    request_id: str
    gateway: int = 0
    problem: str = ""


class Inbox:
    """Receives what clients and the supervisor send to an engine. For one thread."""

    def __init__(self, context: Context, endpoint: Endpoint) -> None:
        keys = endpoint.keys
        self._guard = None if keys is None else _Guard(context, keys.gateway)
        self._socket = _bound(context, endpoint.engine, "" if keys is None else keys.engine_secret)
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def receive(self, wait_s: float) -> Iterator[ToEngine | UnreadableRequest]:
        """All messages that have come; waits up to `wait_s` seconds for the first one. A message that cannot be read is
        logged, and dropped where its sender waits for no answer."""
        if wait_s > 0:
            self._socket.poll(round(wait_s * 1000))
        for payload in _arrived(self._socket):
            try:
                yield self._decoder.decode(payload)
            except msgspec.DecodeError as error:
                log.warning("a message cannot be read", extra={"error": str(error), "bytes": len(payload)})
                with contextlib.suppress(msgspec.DecodeError):
                    sender = msgspec.msgpack.decode(payload, type=UnreadableRequest)
                    yield msgspec.structs.replace(sender, problem=str(error))

    def close(self) -> None:
        self._socket.close(linger=0)
        if self._guard is not None:
            self._guard.stop()


class ClientTransport:
    """The other end: sends to an engine and hands over what comes from it, in the running event loop, until closed.

    A message comes with each step. It is handled where the event loop learns of it: awaiting messages one by one,
    through ZMQ's own futures, took about half of what a step of few streams cost the gateway.

    Args:
        own: ZMQ address that this process binds and the engine writes to.
        handle: Given each message.
        failed: Given the error, once, where a message cannot be read, `handle` raises or the connection breaks; nothing
            is read after that.
        watched: Over TCP, fail where a connection breaks; not needed where messages are repeated.

    Raises:
        zmq.ZMQError: `own` cannot be bound, or the system has no sockets left.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        own: str,
        handle: Callable[[FromEngine], None],
        failed: Callable[[Exception], None],
        *,
        watched: bool = True,
    ) -> None:
        self._handle = handle
        self._failed = failed
        self._context: Context = zmq.Context()
        self._loop = asyncio.get_running_loop()
        self._guard: _Guard | None = None
        try:
            self._open(endpoint, own, watched=watched and endpoint.keys is not None)
        except BaseException:  # it may be tried again and again
            if self._guard is not None:
                self._guard.stop()
            self._context.destroy(linger=0)
            raise
        self._monitors = [each for each in (self._inbound, self._to_engine.monitor) if each is not None]
        self._last_answers: asyncio.TimerHandle | None = None
        """Set once the connection to the engine has broken."""
        self.send = self._to_engine.send if endpoint.keys is None else self._send_if_connected
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._reading = True
        self._loop.add_reader(self._from_engine.fileno(), self._read)
        for monitor in self._monitors:
            self._loop.add_reader(monitor.fileno(), self._check_connections)
        self._loop.call_soon(self._read)  # what came earlier is not signalled

    def _open(self, endpoint: Endpoint, own: str, *, watched: bool) -> None:
        keys = endpoint.keys
        self._guard = None if keys is None else _Guard(self._context, keys.engine)
        self._from_engine = _bound(self._context, own, "" if keys is None else keys.gateway_secret)
        self._inbound = ConnectionMonitor(self._from_engine) if watched else None  # no engine knows the address yet
        self.address = own if keys is None else str(self._from_engine.getsockopt_string(zmq.LAST_ENDPOINT))
        """Address at which the engine finds this process."""
        outbox_keys = None if keys is None else (keys.gateway, keys.gateway_secret, keys.engine)
        self._to_engine = Outbox(self._context, endpoint.engine, 0, outbox_keys, monitored=watched)

    def read_rest(self) -> None:
        """Handle all that has come from an engine that ended; what cannot be read is left out."""
        for payload in self._without_gap() if self._reading else ():
            with contextlib.suppress(msgspec.DecodeError):
                self._handle(self._decoder.decode(payload))

    def close(self) -> None:
        """Close both ends; what has not been sent is dropped. Idempotent."""
        self._stop_reading()
        if self._guard is not None:
            self._guard.stop()
        self._from_engine.close(linger=0)
        self._to_engine.close(drop=True)
        self._context.term()

    def _without_gap(self) -> Iterator[bytes]:
        """All that has come, up to the first message on a connection that was made again."""
        for payload in _arrived(self._from_engine):
            if self._inbound is not None:
                self._inbound.read()
                if self._inbound.made_again:
                    return
            yield payload

    def _check_connections(self) -> None:
        """A connection that breaks may have lost messages."""
        if not self._reading or self._inbound is None:
            return
        for monitor in self._monitors:
            monitor.read()
        if self._inbound.broken:
            self._lose("broke")
        elif self._last_answers is None and any(monitor.broken for monitor in self._monitors):
            self._last_answers = self._loop.call_later(_LAST_ANSWERS_S, self._lose, "broke")

    def _lose(self, how: str) -> None:
        if self._reading:
            try:
                self.read_rest()
            finally:
                self._stop_reading()
                self._failed(ConnectionError(f"the connection to the engine {how}"))

    def _send_if_connected(self, message: ToEngine) -> None:
        """Over TCP: an engine that knows other keys takes no messages, and there is no queue for it."""
        try:
            self._to_engine.send(message)
        except zmq.Again:
            self._loop.call_soon(self._lose, "was refused")

    def _read(self) -> None:
        if not self._reading:
            return
        handled = 0
        try:
            for payload in islice(self._without_gap(), _MESSAGES_AT_ONCE):
                self._handle(self._decoder.decode(payload))
                handled += 1
        except Exception as error:
            self._stop_reading()
            self._failed(error)
        if handled == _MESSAGES_AT_ONCE:
            self._loop.call_soon(self._read)
        self._check_connections()

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._from_engine.fileno())
            for monitor in self._monitors:
                self._loop.remove_reader(monitor.fileno())
                monitor.close()


class _Guard:
    """Lets one public key connect to the sockets of a context, in a thread of its own (ZAP, RFC 27)."""

    def __init__(self, context: Context, allowed: str) -> None:
        self._allowed = allowed.encode()
        self._thread = zmq.auth.thread.ThreadAuthenticator(context, log=log)
        self._thread.start()
        self._thread.configure_curve_callback(domain=_DOMAIN, credentials_provider=self)
        self.stop = self._thread.stop

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._allowed


def _notice_silence(socket: zmq.Socket[bytes]) -> None:
    """Have a connection end whose other end is silent: nothing else may ever report that it is broken."""
    socket.setsockopt(zmq.HEARTBEAT_IVL, _TCP_PING_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _TCP_SILENT_MS)


def _bound(context: Context, address: str, secret: str = "") -> zmq.Socket[bytes]:
    """`secret`: the key of a socket that only known peers may connect to; empty: a Unix socket."""
    socket = context.socket(zmq.PULL)
    if secret:
        _notice_silence(socket)
        socket.curve_server, socket.curve_secretkey = True, secret.encode()
        socket.zap_domain = _DOMAIN.encode()
    socket.set_hwm(0)
    socket.bind(address)
    return socket


def _arrived(socket: zmq.Socket[bytes]) -> Iterator[bytes]:
    """All that has come. ZMQ's descriptor tells of changes only, so it must be read until nothing is left."""
    with contextlib.suppress(zmq.Again):
        while not socket.closed:
            yield socket.recv(zmq.NOBLOCK)
