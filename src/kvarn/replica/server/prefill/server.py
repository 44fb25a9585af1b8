"""The engine that computes prompts for another: it sends each block as soon as it is stored in the memory tier.

A job is an ordinary request without output to its own engine, sent through the engine's inbox as if by a gateway
process. Blocks of a prompt are stored after each chunk, so they are on their way while the next one is computed.

    client ── Ask ──▶ this thread ── Submit ──▶ the engine's thread
           ◀─ Block ─            ◀─ stored ───  (blocks it has put into memory, pinned)
           ◀─ Done ──            ◀─ settled ──  (requests that have ended and whose last blocks are stored)

A few blocks are on their way to a client at a time. The next ones stay in the memory tier until it has taken some; one
that is evicted meanwhile ends its job, and the client computes the rest itself.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from kvarn.clock import SYSTEM_CLOCK
from kvarn.engine.core import EngineCore
from kvarn.engine.plan import BlockTransfer
from kvarn.kvstore import TieredStore
from kvarn.kvstore.record import BlockId, pack_header, tenant_digest
from kvarn.replica.addresses import client_address, engine_address
from kvarn.replica.connection_monitor import ConnectionMonitor
from kvarn.replica.server.prefill.messages import (
    VERSION,
    Ask,
    Block,
    Cancel,
    Done,
    Forget,
    FromPrefill,
    Greeting,
    Received,
    Rejected,
    ToPrefill,
    Welcome,
    open_socket,
)
from kvarn.replica.transport import CLIENT_LINGER_MS, Context, Outbox
from kvarn.wire.messages import OWN_PROCESS, Abort, ForgetTenant, FromEngine, Join, Refused, TokenDelta

_EVENTS = "inproc://events"
WINDOW_BYTES = 64 * 1024 * 1024
"""Contents of blocks on their way to one client."""
_PROBES_S = (0.0, 0.1, 1.0)
"""Seconds after the end of a connection at which each client is written to: ZMQ tells that one is gone a moment before
it refuses to write to it."""

log = logging.getLogger(__name__)


class _Stored(msgspec.Struct, tag=True):
    names: list[bytes]


class _Settled(msgspec.Struct, tag=True):
    """No more blocks of these requests will be stored."""

    request_ids: list[str]


class _Close(msgspec.Struct, tag=True):
    """The engine ends."""


@dataclass(eq=False)
class _Job:
    peer: _Peer
    ask: Ask
    request_id: str
    unsent: set[int] = field(default_factory=set)
    num_ready: int = 0
    is_submitted: bool = False
    is_settled: bool = False
    """No more blocks of it will be stored."""


@dataclass(eq=False)
class _Peer:
    """A client that was greeted."""

    identity: bytes
    on_their_way: int = 0
    """Blocks that were sent and not taken."""
    ready: deque[tuple[_Job, int]] = field(default_factory=deque)
    """Stored blocks to be sent next."""


class PrefillServer:
    """Listens at a path for engines that ask.

    Args:
        path: Path of the Unix socket; its directory belongs to this user alone.
        model: See `BlockId.model`.
        sockets: Directory of the engine's own sockets.
        window_bytes: Contents of blocks on their way to one client; at least one block is.
    """

    def __init__(
        self,
        tiers: TieredStore,
        path: str,
        model: bytes,
        block_bytes: int,
        sockets: str,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._tiers = tiers
        self._greeting = Greeting(VERSION, model, block_bytes)
        self._generation = os.urandom(16)
        self._encoder = msgspec.msgpack.Encoder()
        self._window = max(1, window_bytes // block_bytes)
        self._peers: dict[bytes, _Peer] = {}  # engines that were greeted
        self._jobs: dict[str, _Job] = {}
        self._wanted: dict[bytes, list[tuple[_Job, int]]] = {}
        """Jobs that wait for a block, by its name."""
        self._ended: list[tuple[int, str]] = []
        """Steps of the engine's thread after which requests are settled, and these requests."""
        self._num_requests = 0
        self._context: Context = zmq.Context()
        self._answers = self._context.socket(zmq.PULL)
        self._answers.set_hwm(0)
        self._answers.bind(client_address(sockets, OWN_PROCESS))
        self._engine = Outbox(self._context, engine_address(sockets), CLIENT_LINGER_MS)
        self._engine.send(Join(gateway=OWN_PROCESS, address=client_address(sockets, OWN_PROCESS)))
        self._events = self._context.socket(zmq.PULL)
        self._events.bind(_EVENTS)
        self._tell = self._context.socket(zmq.PUSH)
        self._tell.set_hwm(0)
        self._tell.connect(_EVENTS)
        self._router = open_socket(self._context, zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._monitor = ConnectionMonitor(self._router)
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()
        self._router.bind(f"ipc://{path}")
        tiers.on_stored = self._on_stored
        self._thread = threading.Thread(target=self._run, name="kvarn-prefill-server", daemon=True)
        self._thread.start()

    # The engine's thread ----------------------------------------------------------------------------------------------

    def _on_stored(self, transfers: Sequence[BlockTransfer]) -> None:
        wanted = self._wanted
        names = [each.name for each in transfers if each.name in wanted and self._tiers.reserve(each.name)]
        if names:
            self._tell.send(self._encoder.encode(_Stored(names)))

    def after_step(self, core: EngineCore, deltas: Iterable[TokenDelta]) -> None:
        """A step ended. The last blocks of a request are stored by a step after the one that ends it."""
        for delta in deltas:
            if delta.finish_reason is not None:
                self._ended.append((core.stores_settle_after, delta.request_id))
        settled = [request_id for step, request_id in self._ended if step <= core.num_collected]
        if settled:
            self._ended = [entry for entry in self._ended if entry[0] > core.num_collected]
            self._tell.send(self._encoder.encode(_Settled(settled)))

    def close(self) -> None:
        if not self._tell.closed:
            self._tell.send(self._encoder.encode(_Close()))
            self._thread.join()
            self._tell.close(linger=0)
            self._context.term()

    # Its own thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        events: msgspec.msgpack.Decoder[_Stored | _Settled | _Close] = msgspec.msgpack.Decoder(
            _Stored | _Settled | _Close
        )
        answers = msgspec.msgpack.Decoder(FromEngine)
        poller = zmq.Poller()
        for each in (self._events, self._answers, self._router, self._monitor.fileno()):
            poller.register(each, zmq.POLLIN)
        is_open, probes = True, deque[float]()
        while is_open:
            wait_s = max(0.0, probes[0] - SYSTEM_CLOCK.now()) if probes else None
            ready = dict(poller.poll(None if wait_s is None else math.ceil(wait_s * 1000)))
            self._monitor.read()
            now = SYSTEM_CLOCK.now()
            if self._monitor.broken:
                self._monitor.broken, probes = False, deque(now + later for later in _PROBES_S)
            if probes and now >= probes[0]:
                probes.popleft()
                for peer in list(self._peers.values()):
                    self._send(peer, Welcome(self._generation))
            if self._events in ready:
                is_open = self._handle_event(events.decode(self._events.recv()))
            if self._answers in ready:
                answer = answers.decode(self._answers.recv())
                if isinstance(answer, Refused):
                    self._settle(answer.request_id, "refused")
            if self._router in ready:
                identity, *frames = self._router.recv_multipart()
                self._handle(identity, frames)
        self._monitor.close()
        self._router.close(linger=0)
        self._answers.close(linger=0)
        self._events.close(linger=0)
        self._engine.close(drop=True)

    def _handle_event(self, event: _Stored | _Settled | _Close) -> bool:
        """Handle what the engine's thread tells; returns whether to go on."""
        match event:
            case _Stored():
                for name in event.names:
                    for job, index in self._wanted.pop(name, ()):
                        self._offer(job, index)
                    self._tiers.unreserve(name)
            case _Settled():
                for request_id in event.request_ids:
                    self._settle(request_id, "incomplete")
            case _Close():
                return False
        return True

    def _handle(self, identity: bytes, frames: list[bytes]) -> None:
        try:
            message = msgspec.msgpack.decode(frames[0] if len(frames) == 1 else b"", type=ToPrefill)
        except msgspec.DecodeError as error:
            log.warning("an engine that asks for prompts sent what cannot be read", extra={"reason": str(error)})
            return
        if isinstance(message, Greeting):
            self._greet(_Peer(identity), message)
            return
        peer = self._peers.get(identity)
        if peer is None:
            return  # it was refused, or is gone
        match message:
            case Ask():
                self._take(peer, message)
            case Cancel():
                self._cancel([job for job in self._jobs.values() if job.peer is peer and job.ask.job == message.job])
            case Received():
                peer.on_their_way -= message.count
                self._send_ready(peer)
            case Forget():
                self._engine.send(ForgetTenant(tenant=message.tenant))

    def _greet(self, peer: _Peer, greeting: Greeting) -> None:
        if greeting == self._greeting:
            self._peers[peer.identity] = peer
            self._send(peer, Welcome(self._generation))
            return
        reason = "it has another version" if greeting.version != VERSION else "it has other weights"
        log.error("an engine that asks for prompts is refused", extra={"reason": reason})
        self._send(peer, Rejected(reason))

    def _take(self, peer: _Peer, ask: Ask) -> None:
        self._num_requests += 1
        job = _Job(peer, ask, f"prefill-{self._num_requests}", set(range(len(ask.names))))
        self._jobs[job.request_id] = job
        for index, name in enumerate(ask.names):
            # Wanted first: what is stored between the two is either told or found.
            self._wanted.setdefault(name, []).append((job, index))
            if self._tiers.reserve(name):
                self._drop_wanted(job, name)
                self._offer(job, index)
                self._tiers.unreserve(name)
                if job.request_id not in self._jobs:
                    return  # its peer is gone
        submit = msgspec.structs.replace(ask.request, request_id=job.request_id, gateway=OWN_PROCESS)
        job.is_submitted = True
        self._engine.send(submit)

    def _offer(self, job: _Job, index: int) -> None:
        """A block that is wanted is in memory: it is sent once the client has room for it."""
        if index in job.unsent and job.request_id in self._jobs:
            job.num_ready += 1
            job.peer.ready.append((job, index))
            self._send_ready(job.peer)

    def _send_ready(self, peer: _Peer) -> None:
        while peer.ready and peer.on_their_way < self._window:
            job, index = peer.ready.popleft()
            job.num_ready -= 1
            if job.request_id not in self._jobs:
                continue  # it was cancelled
            name = job.ask.names[index]
            if not self._tiers.reserve(name):
                self._cancel([job])
                self._send(peer, Done(job.ask.job, self._generation, "evicted"))
                continue
            self._send_block(job, index, name)
            self._tiers.unreserve(name)
            if job.is_settled and not job.num_ready:
                self._settle(job.request_id, "incomplete")

    def _send_block(self, job: _Job, index: int, name: bytes) -> None:
        """Send a pinned block; what is queued is a copy."""
        job.unsent.discard(index)
        job.peer.on_their_way += 1
        contents = self._tiers.contents(name)
        block = BlockId(name, self._greeting.model, tenant_digest(job.ask.request.tenant), job.ask.scope)
        self._send(job.peer, Block(job.ask.job, self._generation, index), pack_header(block, contents), contents)

    def _send(self, peer: _Peer, message: FromPrefill, *record: bytes | memoryview) -> None:
        try:
            self._router.send_multipart([peer.identity, self._encoder.encode(message), *record])
        except zmq.ZMQError as error:
            log.info("an engine that asked for prompts is gone", extra={"reason": str(error)})
            self._peers.pop(peer.identity, None)
            self._cancel([job for job in self._jobs.values() if job.peer is peer])

    def _settle(self, request_id: str, problem: str) -> None:
        """Nothing more of a job is computed: it ends with the last of its blocks that is to be sent."""
        job = self._jobs.get(request_id)
        if job is None:
            return
        job.is_settled = True
        if not job.num_ready:
            self._remove(job)
            self._send(job.peer, Done(job.ask.job, self._generation, problem if job.unsent else ""))

    def _cancel(self, jobs: list[_Job]) -> None:
        for job in jobs:
            self._remove(job)
            if job.is_submitted and not job.is_settled:
                self._engine.send(Abort(request_id=job.request_id, gateway=OWN_PROCESS))

    def _remove(self, job: _Job) -> None:
        self._jobs.pop(job.request_id, None)
        for index in job.unsent:
            self._drop_wanted(job, job.ask.names[index])

    def _drop_wanted(self, job: _Job, name: bytes) -> None:
        left = [entry for entry in self._wanted.get(name, ()) if entry[0] is not job]
        if left:
            self._wanted[name] = left
        else:
            self._wanted.pop(name, None)
